# Code that flatc generates compiles with the FlatBuffers of its own version only. The generated header in
# src/ is of Debian 12's; with another version the build generates its own from the same schema.
#
# Sets VARVE_FLATBUFFERS_INCLUDE_DIR, and VARVE_GENERATED_INCLUDE_DIR: what has to be searched before
# src/, or nothing.

find_path(VARVE_FLATBUFFERS_INCLUDE_DIR flatbuffers/flatbuffers.h REQUIRED)
mark_as_advanced(VARVE_FLATBUFFERS_INCLUDE_DIR)
set(VARVE_GENERATED_INCLUDE_DIR "")

# The numbers of a version, as a list, from lines that name its parts.
function(_varve_flatbuffers_version result file)
  file(STRINGS "${file}" lines REGEX "FLATBUFFERS_VERSION_(MAJOR|MINOR|REVISION) (== )?[0-9]+")
  list(TRANSFORM lines REPLACE ".*VERSION_[A-Z]+ (== )?([0-9]+).*" "\\2")
  set(${result} "${lines}" PARENT_SCOPE)
endfunction()

set(_varve_schema "${PROJECT_SOURCE_DIR}/src/format/manifest.fbs")
_varve_flatbuffers_version(_varve_found "${VARVE_FLATBUFFERS_INCLUDE_DIR}/flatbuffers/base.h")
_varve_flatbuffers_version(_varve_kept "${PROJECT_SOURCE_DIR}/src/format/manifest_generated.h")
if(NOT _varve_found STREQUAL _varve_kept)
  find_program(VARVE_FLATC flatc REQUIRED)
  mark_as_advanced(VARVE_FLATC)
  set(VARVE_GENERATED_INCLUDE_DIR "${PROJECT_BINARY_DIR}/generated")
  execute_process(
    COMMAND "${VARVE_FLATC}" --cpp -o "${VARVE_GENERATED_INCLUDE_DIR}/format" "${_varve_schema}"
    COMMAND_ERROR_IS_FATAL ANY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_varve_schema}")
endif()
