# Libraries that take the place of a vendor's. Functions not written by hand are generated from the vendor's header.

# vendor_header(API): find the header that native/API reads; sets API_INCLUDE and API_GENERATOR.
function(vendor_header api)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -m ${api} include
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    OUTPUT_VARIABLE include COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB generator CONFIGURE_DEPENDS vendorapi/*.py ${api}/*.py)
  set(${api}_INCLUDE ${include} PARENT_SCOPE)
  set(${api}_GENERATOR ${generator} PARENT_SCOPE)
endfunction()

# vendor_library(TARGET API SONAME FOLDER COVERAGE [WRAP] SOURCES...): a library SONAME in FOLDER, completed and described
# by the generator. Generated functions return an error or, with WRAP, forward to the vendor's library.
function(vendor_library name api soname folder coverage)
  cmake_parse_arguments(PARSE_ARGV 5 arg "WRAP" "" "")
  add_library(${name}-objects OBJECT ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name}-objects PRIVATE ${api})
  target_include_directories(${name}-objects SYSTEM PRIVATE ${${api}_INCLUDE})
  target_compile_options(${name}-objects PRIVATE -Wno-deprecated-declarations)
  set_target_properties(${name}-objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
  set(rest ${CMAKE_CURRENT_BINARY_DIR}/${name}-rest.c)
  set(described ${CMAKE_CURRENT_BINARY_DIR}/${name}-coverage.json)
  add_custom_command(
    OUTPUT ${rest} ${described}
    COMMAND ${Python_EXECUTABLE} -m ${api} emit --compiler ${CMAKE_C_COMPILER} --nm ${CMAKE_NM}
      --include ${${api}_INCLUDE} --source ${rest} --coverage ${described} $<$<BOOL:${arg_WRAP}>:--wrap>
      $<TARGET_OBJECTS:${name}-objects>
    DEPENDS ${name}-objects $<TARGET_OBJECTS:${name}-objects> ${${api}_GENERATOR}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    COMMAND_EXPAND_LISTS VERBATIM)
  add_library(${name} SHARED $<TARGET_OBJECTS:${name}-objects> ${rest})
  target_include_directories(${name} PRIVATE ${api} ${CMAKE_CURRENT_BINARY_DIR})
  target_include_directories(${name} SYSTEM PRIVATE ${${api}_INCLUDE})
  # Calls within the library stay inside it, even if another library exports the same names.
  target_link_options(${name} PRIVATE -Wl,-Bsymbolic -Wl,-z,defs -Wl,-soname,${soname})
  target_link_libraries(${name} PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m)
  set_target_properties(${name} PROPERTIES
    PREFIX "" OUTPUT_NAME ${soname} SUFFIX "" NO_SONAME ON
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${name})
  install(TARGETS ${name} LIBRARY DESTINATION ${MILLIGPU_NATIVE_DIR}/${folder})
  install(FILES ${described} DESTINATION ${MILLIGPU_NATIVE_DIR}/${folder} RENAME ${coverage})
endfunction()

# cuda_library(NAME [WRAP] SOURCES...): a libcuda.so.1 in its own directory.
function(cuda_library name)
  vendor_library(${name} cudaapi libcuda.so.1 ${name} coverage.json ${ARGN} cudaapi/find.c)
endfunction()

# nvml_library(NAME FOLDER [WRAP] SOURCES...): a libnvidia-ml.so.1 in FOLDER.
function(nvml_library name folder)
  vendor_library(${name} nvmlapi libnvidia-ml.so.1 ${folder} nvml-coverage.json ${ARGN})
endfunction()
