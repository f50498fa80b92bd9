# What `make test-downstream` builds of llama.cpp: the library, as fast as it can be compiled.
# CMake reads this right after the package's `project`, before any of its options are declared.
#
# The package switches the helpers for command lines on by force (LLAMA_BUILD_COMMON), which takes
# more than half of the time and which it never loads; only a plain variable stands above that.
set(LLAMA_BUILD_COMMON OFF)
set(LLAMA_BUILD_EXAMPLES OFF)
set(LLAMA_BUILD_SERVER OFF)
set(LLAMA_BUILD_TESTS OFF)
set(LLAMA_BUILD_TOOLS OFF)
set(LLAVA_BUILD OFF)

# Kernels that a model of this size is quick enough without.
set(GGML_LLAMAFILE OFF)
set(GGML_OPENMP OFF)

set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")
