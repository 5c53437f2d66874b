# The limits library: it exports the driver's symbols and wraps the driver.
set(CUDAAPI_REAL ${CMAKE_CURRENT_BINARY_DIR}/cudaapi_real.h)
add_custom_command(
  OUTPUT ${CUDAAPI_REAL}
  COMMAND ${Python_EXECUTABLE} -m cudaapi.real --compiler ${CMAKE_C_COMPILER} --include ${cudaapi_INCLUDE}
    --header ${CUDAAPI_REAL}
  DEPENDS ${cudaapi_GENERATOR}
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} VERBATIM)
add_custom_command(
  OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/enforce-copies.c
  COMMAND ${Python_EXECUTABLE} -m enforce.copies --compiler ${CMAKE_C_COMPILER} --include ${cudaapi_INCLUDE}
    --source ${CMAKE_CURRENT_BINARY_DIR}/enforce-copies.c
  DEPENDS enforce/copies.py ${cudaapi_GENERATOR}
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} VERBATIM)
cuda_library(enforce WRAP
  ${CUDAAPI_REAL} ${CMAKE_CURRENT_BINARY_DIR}/enforce-copies.c
  enforce/account.c enforce/arrays.c enforce/charge.c enforce/contexts.c enforce/devices.c enforce/fatbin.c enforce/folder.c enforce/granules.c enforce/graphs.c
  enforce/image.c enforce/ptx.c enforce/unpack_lz4.c enforce/unpack_zstd.c
  enforce/launch.c enforce/lease.c enforce/ledger.c enforce/link.c enforce/memory.c enforce/modules.c
  enforce/outstanding.c enforce/pools.c enforce/route.c enforce/streams.c enforce/tenant.c enforce/virtual.c lease/pace.c pages/pages.c)
target_include_directories(enforce-objects PRIVATE enforce lease include ${CMAKE_CURRENT_BINARY_DIR})

link_old_libc(enforce)
# A thread and fork handlers of the library go on after dlclose.
target_link_options(enforce PRIVATE -Wl,-z,nodelete)

# The same for NVML: shows this tenant's GPUs, memory and processes, and refuses to change a GPU.
set(ENFORCE_SETTINGS ${CMAKE_CURRENT_BINARY_DIR}/enforce-settings.c)
add_custom_command(
  OUTPUT ${ENFORCE_SETTINGS}
  COMMAND ${Python_EXECUTABLE} -m enforce.settings --compiler ${CMAKE_C_COMPILER} --include ${nvmlapi_INCLUDE}
    --source ${ENFORCE_SETTINGS}
  DEPENDS enforce/settings.py ${nvmlapi_GENERATOR}
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} VERBATIM)
nvml_library(enforce-nvml enforce WRAP
  ${ENFORCE_SETTINGS} enforce/folder.c enforce/view.c enforce/view_private.c enforce/view_processes.c
  pages/pages.c)
target_include_directories(enforce-nvml-objects PRIVATE enforce include)
link_old_libc(enforce-nvml)
target_link_options(enforce-nvml PRIVATE -Wl,-z,nodelete)
