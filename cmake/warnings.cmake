# Warnings for our own code only. Third-party headers come in as SYSTEM directories and stay silent.
function(varve_set_warnings target)
  # Options structs are filled by designated initialisers, where leaving a member out means its default;
  # g++ warns about that all the same.
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wshadow -Wconversion -Wno-missing-field-initializers)
  if(VARVE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  # g++ 12 sees overruns in std::string's own operator+ (GCC bug 105651); they stay visible, not fatal.
  target_compile_options(${target} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-error=array-bounds;-Wno-error=restrict;-Wno-error=stringop-overflow>)
  # Clang counts -Wsign-conversion to -Wconversion, g++ does not: one rule for both. And it reports
  # libstdc++'s own use of its deprecated get_temporary_buffer (std::stable_sort) as ours.
  target_compile_options(${target} PRIVATE
    $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion;-Wno-deprecated-declarations>)
endfunction()
