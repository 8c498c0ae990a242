/* Loops of one instruction each, the fastest of its kind that a processor has for a number type: no memory is read.
 *
 * Every function runs `rounds` rounds and returns its operations (a product and a sum count as two). The accumulators
 * are independent, so that the instruction's throughput counts and not its latency. All numbers are 0. Compiled for
 * x86-64 by benchmarks/engine/peak.py, which calls a function only where the processor has its instruction.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ACCUMULATORS 12
#define EACH ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t"

#define LOOP(name, operations, registers, instruction)                                            \
    double name(long rounds) {                                                                    \
        long left = rounds;                                                                       \
        __asm__ volatile(EACH "vxorps %%xmm\\r, %%xmm\\r, %%xmm\\r\n\t.endr\n\t"                  \
                         "vxorps %%xmm14, %%xmm14, %%xmm14\n\tvxorps %%xmm15, %%xmm15, %%xmm15\n\t" \
                         "1:\n\t" EACH instruction " %%" registers "14, %%" registers "15, %%" registers \
                         "\\r\n\t.endr\n\tdec %0\n\tjnz 1b\n\tvzeroupper"                         \
                         : "+r"(left)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                           "xmm9", "xmm10", "xmm11", "xmm14", "xmm15", "cc");                     \
        return (double)rounds * ACCUMULATORS * (operations);                                      \
    }

LOOP(fp32_avx2, 16, "ymm", "vfmadd231ps")
LOOP(fp32_avx512f, 32, "zmm", "vfmadd231ps")
LOOP(bf16_avx512_bf16, 64, "zmm", "vdpbf16ps")
LOOP(int8_avx512_vnni, 128, "zmm", "vpdpbusd")
LOOP(int8_avx_vnni, 64, "ymm", "%{vex%} vpdpbusd")

/* The tiles of AMX: 16 rows of 64 bytes. Returns 0 where the system does not allow them. */
static int configure_tiles(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA)) return 0;
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } tiles;
    memset(&tiles, 0, sizeof tiles);
    tiles.palette = 1;
    for (int i = 0; i < 8; i++) tiles.bytes[i] = 64, tiles.rows[i] = 16;
    __asm__ volatile("ldtilecfg %0" ::"m"(tiles));
    return 1;
}

#define TILE_ACCUMULATORS 6
#define TILES ".irp r,0,1,2,3,4,5\n\t"
#define TILE_LOOP(name, operations, instruction)                                                  \
    double name(long rounds) {                                                                    \
        long left = rounds;                                                                       \
        if (!configure_tiles()) return 0;                                                         \
        __asm__ volatile(TILES "tilezero %%tmm\\r\n\t.endr\n\ttilezero %%tmm6\n\ttilezero %%tmm7\n\t" \
                         "1:\n\t" TILES instruction " %%tmm7, %%tmm6, %%tmm\\r\n\t.endr\n\t"      \
                         "dec %0\n\tjnz 1b\n\ttilerelease" : "+r"(left)::"cc");                   \
        return (double)rounds * TILE_ACCUMULATORS * (operations);                                 \
    }

TILE_LOOP(bf16_amx_bf16, 16 * 16 * 32 * 2, "tdpbf16ps")
TILE_LOOP(int8_amx_int8, 16 * 16 * 64 * 2, "tdpbssd")
