/* GCC before 13 declares that _tile_loadconfig reads 8 of the 64 bytes of its argument, so the optimizer drops the stores
 * to the other 56 and the first matrix product ends the process. This header is included before every file; it declares
 * all 64 bytes. */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#include <immintrin.h>
static inline void load_whole_tile_config(const void *config) {
    __asm__ volatile("ldtilecfg\t%X0" : : "m"(*(const char(*)[64])config));
}
#define _tile_loadconfig load_whole_tile_config
#endif
