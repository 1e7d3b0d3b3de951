// The kernels of the driver's laws, each run by one thread. conftest.py declares the
// layout of their parameters: <dst, src, count, amount>, 8 bytes each.

using Word = long long;
using Count = unsigned long long;

extern "C" __global__ void add(Word* dst, const Word* src, Count count, Word amount) {
  for (Count i = 0; i < count; ++i) dst[i] = src[i] + amount;
}

extern "C" __global__ void mix(Word* dst, const Word* src, Count count, Word) {
  for (Count i = 0; i < count; ++i) {
    dst[i] = Count(dst[i]) * 31 + Count(src[i]);  // wraps
  }
}

extern "C" __global__ void fail(Word*, const Word*, Count, Word) { __trap(); }

// Parameters with holes between them, and an address that nobody declares.
extern "C" __global__ void odd(char a, double b, int c, double* out) {
  *out = a + b + c;
}

// Uses the last byte of the shared memory that it is launched with.
extern "C" __global__ void shared(unsigned size, char* out) {
  extern __shared__ char block[];
  block[size - 1] = 7;
  *out = block[size - 1];
}
