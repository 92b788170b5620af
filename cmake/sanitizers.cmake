# VARVE_SANITIZE is a list as the compiler takes it: "address;undefined" or "thread".
# The flags are set for the whole build, not per target: mixing instrumented and plain objects of the
# same library gives false reports.
if(VARVE_SANITIZE)
  list(JOIN VARVE_SANITIZE "," _varve_sanitizers)
  add_compile_options(-fsanitize=${_varve_sanitizers} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${_varve_sanitizers})
  if("undefined" IN_LIST VARVE_SANITIZE)
    # Undefined behaviour must fail the test that met it, not only print a line.
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
  if("thread" IN_LIST VARVE_SANITIZE)
    # GCC and Clang both warn that fences are not modelled; our code uses none.
    add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
  unset(_varve_sanitizers)
endif()
