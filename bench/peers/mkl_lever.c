// Preloaded into PyTorch for the tuned peer: MKL uses its AVX-512 kernels only if this function says that the CPU is
// Intel's. bench/sides.py compiles it:  cc -shared -fPIC -O1 mkl_lever.c -o mkl_lever.so
int mkl_serv_intel_cpu_true(void) { return 1; }
