# Installs a built varve to a fresh prefix, then configures, builds and runs this folder's project
# against it, as a user of find_package(varve) would.
#
# Arguments: SOURCE_DIR, VARVE_BUILD_DIR, WORK_DIR, CXX_COMPILER, VERSION (what must be printed).

file(REMOVE_RECURSE "${WORK_DIR}")
set(prefix "${WORK_DIR}/prefix")
execute_process(
  COMMAND ${CMAKE_COMMAND} --install "${VARVE_BUILD_DIR}" --prefix "${prefix}" --component library
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND ${CMAKE_COMMAND} -G Ninja -S "${SOURCE_DIR}" -B "${WORK_DIR}/build"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND ${CMAKE_COMMAND} --build "${WORK_DIR}/build"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND "${WORK_DIR}/build/consumer"
  OUTPUT_VARIABLE printed OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT printed STREQUAL VERSION)
  message(FATAL_ERROR "the consumer printed '${printed}', expected '${VERSION}'")
endif()

# What gets installed must not depend on where it was built.
file(GLOB configs "${prefix}/lib*/cmake/varve/*.cmake" "${prefix}/lib/*/cmake/varve/*.cmake")
foreach(config IN LISTS configs)
  file(READ "${config}" text)
  string(FIND "${text}" "${VARVE_BUILD_DIR}" found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "${config} names the build folder")
  endif()
endforeach()
