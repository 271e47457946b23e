# kernel_check: the kernels and the host's files without Python. Included by CMakeLists.txt.
add_executable(kernel_check
  csrc/check/main.cpp csrc/check/adapted.cpp csrc/check/check_linears.cpp csrc/check/check_models.cpp csrc/check/check_packing.cpp
  csrc/check/check_refusals.cpp csrc/check/check_sampling.cpp csrc/check/check_shared.cpp csrc/check/check_team.cpp csrc/check/host.cpp
  csrc/check/oracle.cpp csrc/check/packed.cpp csrc/check/toy_adapter.cpp csrc/check/toy_model.cpp csrc/check/unpack.cpp)
# The oracle takes most of the time, and needs no watching.
set_source_files_properties(csrc/check/adapted.cpp csrc/check/oracle.cpp csrc/check/unpack.cpp PROPERTIES
                            COMPILE_OPTIONS "-O2;-fno-sanitize=all")
target_compile_options(kernel_check PRIVATE -Wall -Wextra)
target_link_libraries(kernel_check PRIVATE Threads::Threads)

# The set `amx` with its tiles in plain C++: runs wherever AVX-512 VNNI does.
if(avx512)
  orcaserve_kernels(amx_shim 64 32 ${avx512} -mavx512vnni -DORCASERVE_AMX_SHIM)
  target_sources(kernel_check PRIVATE csrc/check/amx_shim.cpp)
endif()
target_sources(kernel_check PRIVATE ${objects})
