# The limits library: the same symbols in front of a driver's.
set(CUDAAPI_REAL ${CMAKE_CURRENT_BINARY_DIR}/cudaapi_real.h)
add_custom_command(
  OUTPUT ${CUDAAPI_REAL}
  COMMAND ${Python_EXECUTABLE} -m cudaapi real --compiler ${CMAKE_C_COMPILER} --include ${CUDA_INCLUDE}
    --header ${CUDAAPI_REAL}
  DEPENDS ${CUDAAPI_GENERATOR}
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} VERBATIM)
add_custom_command(
  OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/enforce-copies.c
  COMMAND ${Python_EXECUTABLE} -m enforce.copies --compiler ${CMAKE_C_COMPILER} --include ${CUDA_INCLUDE}
    --source ${CMAKE_CURRENT_BINARY_DIR}/enforce-copies.c
  DEPENDS enforce/copies.py ${CUDAAPI_GENERATOR}
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} VERBATIM)
cuda_library(enforce WRAP
  ${CUDAAPI_REAL} ${CMAKE_CURRENT_BINARY_DIR}/enforce-copies.c
  enforce/account.c enforce/arrays.c enforce/charge.c enforce/contexts.c enforce/devices.c enforce/image.c
  enforce/launch.c enforce/lease.c enforce/ledger.c enforce/memory.c enforce/modules.c enforce/pools.c enforce/route.c
  enforce/tenant.c enforce/virtual.c pages/pages.c)
target_include_directories(enforce-objects PRIVATE enforce include ${CMAKE_CURRENT_BINARY_DIR})
