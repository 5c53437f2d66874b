# The recorder of driver calls: it exports the driver's symbols and passes every call on.
set(RECORD_CALLS ${CMAKE_CURRENT_BINARY_DIR}/record-calls.c)
add_custom_command(
  OUTPUT ${RECORD_CALLS}
  COMMAND ${Python_EXECUTABLE} -m record.calls --compiler ${CMAKE_C_COMPILER} --include ${cudaapi_INCLUDE}
    --source ${RECORD_CALLS}
  DEPENDS record/calls.py ${cudaapi_GENERATOR}
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} VERBATIM)
cuda_library(record WRAP ${CUDAAPI_REAL} ${RECORD_CALLS} record/record.c)
target_include_directories(record-objects PRIVATE record ${CMAKE_CURRENT_BINARY_DIR})
link_old_libc(record)
