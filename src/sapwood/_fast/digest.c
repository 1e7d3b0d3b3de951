/* What a library was built from: `build.py` looks for this in its file. */
__attribute__((visibility("default"))) const char sapwood_built_from[] =
    "built from " SAPWOOD_BUILT_FROM;
