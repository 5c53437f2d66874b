# GPUs over the network: a libcuda.so.1 and a libnvidia-ml.so.1 that send calls to a worker, and the worker.
#
# TLS comes from OpenSSL, linked statically and hidden, so that a program's own OpenSSL and ours do not meet.
set(OPENSSL_USE_STATIC_LIBS TRUE)
if(CMAKE_CROSSCOMPILING)
  # What is installed here is for this machine's processor. The other machine's files are in CMAKE_FIND_ROOT_PATH.
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
endif()
if(NOT CMAKE_CROSSCOMPILING OR CMAKE_FIND_ROOT_PATH)
  find_package(OpenSSL 3.0)
endif()
if(NOT OpenSSL_FOUND)
  message(STATUS "GPUs over the network are left out: OpenSSL's headers and static libraries are not installed")
  return()
endif()

# Debian has a header that differs between processors in a directory of its own.
set(REMOTE_OPENSSL ${OPENSSL_INCLUDE_DIR} ${OPENSSL_INCLUDE_DIR}/${CMAKE_LIBRARY_ARCHITECTURE})
set(REMOTE ${CMAKE_CURRENT_BINARY_DIR}/remote-generated)
file(MAKE_DIRECTORY ${REMOTE})
file(GLOB REMOTE_GENERATOR CONFIGURE_DEPENDS remote/*.py remote/*.toml)
set(REMOTE_HEADERS ${REMOTE}/remote_operations.h ${REMOTE}/remote_asked.h ${REMOTE}/remote_real.h)
set(REMOTE_SOURCES ${REMOTE}/remote-client.c ${REMOTE}/remote-nvml.c ${REMOTE}/remote-worker.c)
add_custom_command(
  OUTPUT ${REMOTE_HEADERS} ${REMOTE_SOURCES} ${REMOTE}/remote-coverage.json
  COMMAND ${Python_EXECUTABLE} -m remote --compiler ${CMAKE_C_COMPILER} --cuda ${cudaapi_INCLUDE}
    --nvml ${nvmlapi_INCLUDE} --folder ${REMOTE}
  DEPENDS ${REMOTE_GENERATOR} ${cudaapi_GENERATOR} ${nvmlapi_GENERATOR}
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} VERBATIM)
# Three targets use these files; without this each would write them.
add_custom_target(remote-generated DEPENDS ${REMOTE_HEADERS} ${REMOTE_SOURCES})

function(remote_target target)
  add_dependencies(${target} remote-generated)
  target_include_directories(${target} PRIVATE remote remote/client remote/nvml remote/worker ${REMOTE} cudaapi nvmlapi)
  target_include_directories(${target} SYSTEM PRIVATE
    ${cudaapi_INCLUDE} ${nvmlapi_INCLUDE} ${REMOTE_OPENSSL})
  target_compile_options(${target} PRIVATE -Wno-deprecated-declarations)
endfunction()
function(remote_library name)
  remote_target(${name}-objects)
  target_compile_definitions(${name}-objects PRIVATE __CUDA_API_VERSION_INTERNAL=1)
  target_link_libraries(${name} PRIVATE OpenSSL::SSL OpenSSL::Crypto)
  target_link_options(${name} PRIVATE -Wl,--exclude-libs,ALL -Wl,-z,nodelete)
  link_old_libc(${name} oldlibc/newer.c)
endfunction()

cuda_library(remote
  ${REMOTE}/remote-client.c remote/line.c remote/client/attach.c remote/client/boxes.c remote/client/capture.c remote/client/contexts.c remote/client/copies.c remote/client/counts.c
  remote/client/facts.c remote/client/functions.c remote/client/hello.c remote/client/host.c remote/client/jit.c remote/client/landings.c
  remote/client/lanes.c remote/client/launch.c
  remote/client/link.c remote/client/memory.c remote/client/modules.c remote/client/ranges.c remote/client/slabs.c
  remote/client/wait.c)
remote_library(remote)
nvml_library(remote-nvml remote ${REMOTE}/remote-nvml.c remote/line.c remote/client/attach.c remote/client/counts.c remote/client/hello.c
  remote/client/landings.c remote/client/lanes.c remote/client/link.c remote/nvml/start.c)
remote_library(remote-nvml)
install(FILES ${REMOTE}/remote-coverage.json DESTINATION ${MILLIGPU_NATIVE_DIR}/remote RENAME functions.json)

add_executable(milligpu-worker
  ${REMOTE}/remote-worker.c remote/line.c remote/worker/boxes.c remote/worker/capture.c remote/worker/copies.c remote/worker/handles.c remote/worker/host.c
  remote/worker/launch.c remote/worker/main.c remote/worker/modules.c remote/worker/out.c remote/worker/request.c
  remote/worker/welcome.c)
remote_target(milligpu-worker)
target_compile_definitions(milligpu-worker PRIVATE __CUDA_API_VERSION_INTERNAL=1)
target_link_libraries(milligpu-worker PRIVATE OpenSSL::SSL OpenSSL::Crypto Threads::Threads ${CMAKE_DL_LIBS})
install(TARGETS milligpu-worker RUNTIME DESTINATION ${MILLIGPU_NATIVE_DIR})

# Both decoders as programs that feed themselves random frames; only of use with the sanitizers.
if(MILLIGPU_SANITIZE)
  add_custom_command(
    OUTPUT ${REMOTE}/fuzz-driver.c
    COMMAND ${Python_EXECUTABLE} remote/fuzz/driver.py ${REMOTE}/remote_real.h ${REMOTE}/fuzz-driver.c
    DEPENDS remote/fuzz/driver.py ${REMOTE}/remote_real.h
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} VERBATIM)
  add_executable(milligpu-fuzz-worker
    remote/fuzz/worker.c ${REMOTE}/fuzz-driver.c ${REMOTE}/remote-worker.c remote/worker/boxes.c remote/worker/capture.c remote/worker/copies.c remote/worker/handles.c
    remote/worker/host.c remote/worker/launch.c remote/worker/modules.c remote/worker/request.c remote/worker/welcome.c)
  add_executable(milligpu-fuzz-client
    remote/fuzz/client.c ${REMOTE}/remote-client.c ${CMAKE_CURRENT_BINARY_DIR}/remote-rest.c cudaapi/find.c
    remote/client/attach.c remote/client/boxes.c remote/client/capture.c remote/client/contexts.c remote/client/copies.c remote/client/counts.c
    remote/client/facts.c remote/client/functions.c remote/client/hello.c remote/client/host.c remote/client/jit.c
    remote/client/landings.c remote/client/lanes.c remote/client/launch.c remote/client/memory.c
    remote/client/modules.c remote/client/ranges.c remote/client/slabs.c remote/client/wait.c)
  add_dependencies(milligpu-fuzz-client remote)
  foreach(program milligpu-fuzz-worker milligpu-fuzz-client)
    remote_target(${program})
    target_include_directories(${program} PRIVATE remote/fuzz ${CMAKE_CURRENT_BINARY_DIR})
    target_compile_definitions(${program} PRIVATE __CUDA_API_VERSION_INTERNAL=1)
    target_link_libraries(${program} PRIVATE OpenSSL::SSL OpenSSL::Crypto Threads::Threads ${CMAKE_DL_LIBS} m)
    install(TARGETS ${program} RUNTIME DESTINATION ${MILLIGPU_NATIVE_DIR})
  endforeach()
endif()

# The image milligpu-client has nothing but this program and the client libraries.
add_executable(milligpu-client remote/copy/main.c)
if(NOT MILLIGPU_SANITIZE)
  target_link_options(milligpu-client PRIVATE -static)
endif()
install(TARGETS milligpu-client RUNTIME DESTINATION ${MILLIGPU_NATIVE_DIR})
