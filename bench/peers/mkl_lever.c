// Preloaded into PyTorch to make the tuned peer: MKL asks this function whether the CPU is Intel's before it takes its AVX-512
// kernels. bench/sides.py compiles it:  cc -shared -fPIC -O1 mkl_lever.c -o mkl_lever.so
int mkl_serv_intel_cpu_true(void) { return 1; }
