# NVML as data, as cudaapi is the driver API: the vendor's header comes as a wheel.
execute_process(
  COMMAND ${Python_EXECUTABLE} -m nvmlapi include
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
  OUTPUT_VARIABLE NVML_INCLUDE COMMAND_ERROR_IS_FATAL ANY)
file(GLOB NVMLAPI_GENERATOR CONFIGURE_DEPENDS nvmlapi/*.py)

# nvml_library(NAME FOLDER [PASS_ON] SOURCES...): a libnvidia-ml.so.1 in FOLDER, completed by the generator: the rest
# answers NOT_SUPPORTED, or with PASS_ON goes to the real library that nvmlapi_next() finds.
function(nvml_library name folder)
  cmake_parse_arguments(PARSE_ARGV 2 arg "PASS_ON" "" "")
  add_library(${name}-objects OBJECT ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name}-objects PRIVATE nvmlapi)
  target_include_directories(${name}-objects SYSTEM PRIVATE ${NVML_INCLUDE})
  target_compile_options(${name}-objects PRIVATE -Wno-deprecated-declarations)
  set_target_properties(${name}-objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
  add_custom_command(
    OUTPUT ${name}-rest.c ${name}-coverage.json
    COMMAND ${Python_EXECUTABLE} -m nvmlapi emit --compiler ${CMAKE_C_COMPILER} --nm ${CMAKE_NM}
      --include ${NVML_INCLUDE} --source ${CMAKE_CURRENT_BINARY_DIR}/${name}-rest.c $<$<BOOL:${arg_PASS_ON}>:--pass-on>
      --coverage ${CMAKE_CURRENT_BINARY_DIR}/${name}-coverage.json $<TARGET_OBJECTS:${name}-objects>
    DEPENDS ${name}-objects $<TARGET_OBJECTS:${name}-objects> ${NVMLAPI_GENERATOR}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    COMMAND_EXPAND_LISTS VERBATIM)
  add_library(${name} SHARED $<TARGET_OBJECTS:${name}-objects> ${CMAKE_CURRENT_BINARY_DIR}/${name}-rest.c)
  target_include_directories(${name} PRIVATE nvmlapi)
  target_include_directories(${name} SYSTEM PRIVATE ${NVML_INCLUDE})
  target_link_options(${name} PRIVATE -Wl,-Bsymbolic -Wl,-z,defs -Wl,-soname,libnvidia-ml.so.1)
  target_link_libraries(${name} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(${name} PROPERTIES
    OUTPUT_NAME nvidia-ml SUFFIX .so.1 NO_SONAME ON LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${name})
  install(TARGETS ${name} LIBRARY DESTINATION ${MILLIGPU_NATIVE_DIR}/${folder})
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}-coverage.json
    DESTINATION ${MILLIGPU_NATIVE_DIR}/${folder} RENAME nvml-coverage.json)
endfunction()
