# Registers one ctest entry per GoogleTest suite, labelled "unit" and with the module its source file
# is of (base, tensor, ..., pipeline). Run after each link of the test binary, which itself says
# what it holds: a suite that was compiled in cannot be forgotten, and the label follows the file.
# One entry per suite rather than per test: a sanitizer build takes longer to start than most tests run.
# Crash matrices and exhaustion take longest: an entry per test shares them out among the cores.
#
# Arguments: BINARY, SOURCE_DIR, OUTPUT (the ctest file to write), LIST (the JSON to leave).

# A process that the build has just forked may still hold the linked file open for writing: the system
# then refuses to run it ("text file is busy"), for an instant.
foreach(attempt RANGE 10)
  execute_process(
    COMMAND "${BINARY}" --gtest_list_tests "--gtest_output=json:${LIST}"
    OUTPUT_QUIET ERROR_VARIABLE errors RESULT_VARIABLE code)
  if(NOT code MATCHES "busy")
    break()
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" -E sleep 0.5)
endforeach()
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${BINARY} --gtest_list_tests failed (${code}): ${errors}")
endif()
file(READ "${LIST}" list)

set(script "")
string(JSON suite_count LENGTH "${list}" testsuites)
if(suite_count GREATER 0)
  math(EXPR last "${suite_count} - 1")
  foreach(index RANGE ${last})
    string(JSON suite GET "${list}" testsuites ${index})
    string(JSON name GET "${suite}" name)
    string(JSON file GET "${suite}" testsuite 0 file)
    # Objects have paths from SOURCE_DIR on (-ffile-prefix-map).
    if(NOT EXISTS "${SOURCE_DIR}/${file}")
      message(FATAL_ERROR "the suite ${name} is of ${file}, which is no file of ${SOURCE_DIR}")
    endif()
    get_filename_component(folder "${file}" DIRECTORY)
    # src/interop/dcp/x_test.cc is of interop, tests/crash/x_test.cc of crash.
    string(REGEX REPLACE "^[^/]*/([^/]*).*" "\\1" module "${folder}")
    set(properties "PROPERTIES LABELS \"unit;${module}\" TIMEOUT 600")
    if(NOT module MATCHES "^(crash|exhaustion)$")
      string(APPEND script
        "add_test([==[${name}]==] [==[${BINARY}]==] [==[--gtest_filter=${name}.*]==])\n"
        "set_tests_properties([==[${name}]==] ${properties})\n")
      continue()
    endif()
    string(JSON test_count LENGTH "${suite}" testsuite)
    math(EXPR last_test "${test_count} - 1")
    foreach(number RANGE ${last_test})
      string(JSON test GET "${suite}" testsuite ${number} name)
      string(APPEND script
        "add_test([==[${name}.${test}]==] [==[${BINARY}]==] [==[--gtest_filter=${name}.${test}]==])\n"
        "set_tests_properties([==[${name}.${test}]==] ${properties})\n")
    endforeach()
  endforeach()
endif()
file(WRITE "${OUTPUT}" "${script}")
