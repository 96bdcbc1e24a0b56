/* CRC-32 (IEEE, reflected: zlib's) and CRC-32C (Castagnoli's polynomial) over a buffer.
 *
 * If the CPU has carry-less multiplication, 64 bytes are folded at a time, or 128 if it multiplies in 256 bits, or 256
 * if in 512 (the method of Gopal and others, "Fast CRC computation using PCLMULQDQ", with the constants of the reflected
 * polynomial 0xEDB88320). The rest, and everything on other CPUs, takes eight table look-ups per eight bytes.
 *
 * A fold by D bits takes two constants, x^(D+32) and x^(D-32) modulo the polynomial, bits reversed, times two.
 *
 * For CRC-32C, CPUs with SSE 4.2 have an instruction for eight bytes.
 */
#ifndef MQLAKE_CRC32_H
#define MQLAKE_CRC32_H

#include <stdint.h>
#include <stddef.h>
#include <string.h>

static uint32_t crc_table[8][256];
static uint32_t crc_c_table[8][256];
static int crc_c_by_instruction = 0;
static int crc_by_multiplication = 0;
static int crc_by_double_multiplication = 0;
static int crc_by_wide_multiplication = 0;

static void crc32_fill_table(uint32_t table[8][256], uint32_t polynomial) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = (c >> 1) ^ (polynomial & (0u - (c & 1u)));
        table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++)
            table[t][i] = (table[t - 1][i] >> 8) ^ table[0][table[t - 1][i] & 0xFF];
}

static void crc32_prepare(void) {
    crc32_fill_table(crc_table, 0xEDB88320u);
    crc32_fill_table(crc_c_table, 0x82F63B78u);
#if defined(__x86_64__)
    __builtin_cpu_init();
    crc_by_multiplication = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    crc_by_double_multiplication = crc_by_multiplication && __builtin_cpu_supports("avx2") &&
                                   __builtin_cpu_supports("vpclmulqdq");
    crc_by_wide_multiplication = crc_by_double_multiplication && __builtin_cpu_supports("avx512f");
    crc_c_by_instruction = __builtin_cpu_supports("sse4.2");
#endif
}

/* Takes and returns the raw state: the caller inverts it before the first call and after the last. */
static uint32_t crc32_by_table(uint32_t table[8][256], uint32_t crc, const uint8_t *p, size_t n) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (n >= 8) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + 4, 4);
        low ^= crc;
        crc = table[7][low & 0xFF] ^ table[6][(low >> 8) & 0xFF] ^
              table[5][(low >> 16) & 0xFF] ^ table[4][low >> 24] ^
              table[3][high & 0xFF] ^ table[2][(high >> 8) & 0xFF] ^
              table[1][(high >> 16) & 0xFF] ^ table[0][high >> 24];
        p += 8;
        n -= 8;
    }
#endif
    while (n--) crc = (crc >> 8) ^ table[0][(crc ^ *p++) & 0xFF];
    return crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("pclmul,sse4.1")))
static inline __m128i crc32_fold(__m128i value, __m128i constants, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(value, constants, 0x00);
    __m128i high = _mm_clmulepi64_si128(value, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Return the CRC of four consecutive lanes of 16 bytes and of n more bytes, a multiple of 16. */
__attribute__((target("pclmul,sse4.1")))
static inline uint32_t crc32_finish(__m128i a, __m128i b, __m128i c, __m128i d, const __m128i *at, size_t n) {
    const __m128i by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i low_32 = _mm_setr_epi32(~0, 0, ~0, 0);

    a = crc32_fold(a, by_16, b);
    a = crc32_fold(a, by_16, c);
    a = crc32_fold(a, by_16, d);
    while (n >= 16) {
        a = crc32_fold(a, by_16, _mm_loadu_si128(at++));
        n -= 16;
    }
    /* 128 bits to 64, then to 32 by Barrett's reduction. */
    b = _mm_clmulepi64_si128(a, by_16, 0x10);
    a = _mm_xor_si128(_mm_srli_si128(a, 8), b);
    b = _mm_srli_si128(a, 4);
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_32), by_8, 0x00), b);
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low_32), barrett, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, low_32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}

/* n is a multiple of 16 and at least 64. */
__attribute__((target("pclmul,sse4.1")))
static uint32_t crc32_by_folding(uint32_t crc, const uint8_t *p, size_t n) {
    const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i *at = (const __m128i *)p;

    __m128i a = _mm_xor_si128(_mm_loadu_si128(at), _mm_cvtsi32_si128((int)crc));
    __m128i b = _mm_loadu_si128(at + 1);
    __m128i c = _mm_loadu_si128(at + 2);
    __m128i d = _mm_loadu_si128(at + 3);
    at += 4;
    n -= 64;
    while (n >= 64) {
        a = crc32_fold(a, by_64, _mm_loadu_si128(at));
        b = crc32_fold(b, by_64, _mm_loadu_si128(at + 1));
        c = crc32_fold(c, by_64, _mm_loadu_si128(at + 2));
        d = crc32_fold(d, by_64, _mm_loadu_si128(at + 3));
        at += 4;
        n -= 64;
    }
    return crc32_finish(a, b, c, d, at, n);
}

__attribute__((target("avx2,vpclmulqdq,pclmul,sse4.1")))
static inline __m256i crc32_double_fold(__m256i value, __m256i constants, const uint8_t *next) {
    __m256i low = _mm256_clmulepi64_epi128(value, constants, 0x00);
    __m256i high = _mm256_clmulepi64_epi128(value, constants, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), _mm256_loadu_si256((const __m256i *)next));
}

/* n is a multiple of 16 and at least 128. */
__attribute__((target("avx2,vpclmulqdq,pclmul,sse4.1")))
static uint32_t crc32_by_double_folding(uint32_t crc, const uint8_t *p, size_t n) {
    const __m256i by_128 = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x14a7fe880, 0x1e88ef372));
    const __m256i by_64 = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x1c6e41596, 0x154442bd4));
    const __m256i *at = (const __m256i *)p;

    __m256i a = _mm256_xor_si256(_mm256_loadu_si256(at), _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)crc)));
    __m256i b = _mm256_loadu_si256(at + 1);
    __m256i c = _mm256_loadu_si256(at + 2);
    __m256i d = _mm256_loadu_si256(at + 3);
    p += 128;
    n -= 128;
    while (n >= 128) {
        a = crc32_double_fold(a, by_128, p);
        b = crc32_double_fold(b, by_128, p + 32);
        c = crc32_double_fold(c, by_128, p + 64);
        d = crc32_double_fold(d, by_128, p + 96);
        p += 128;
        n -= 128;
    }
    a = crc32_double_fold(a, by_64, (const uint8_t *)&c);
    b = crc32_double_fold(b, by_64, (const uint8_t *)&d);
    if (n >= 64) {
        a = crc32_double_fold(a, by_64, p);
        b = crc32_double_fold(b, by_64, p + 32);
        p += 64;
        n -= 64;
    }
    return crc32_finish(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1), _mm256_castsi256_si128(b),
                        _mm256_extracti128_si256(b, 1), (const __m128i *)p, n);
}

__attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1")))
static inline __m512i crc32_wide_fold(__m512i value, __m512i constants, __m512i next) {
    __m512i low = _mm512_clmulepi64_epi128(value, constants, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(value, constants, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* exclusive or of the three */
}

/* n is a multiple of 16 and at least 256. Four registers of 64 bytes are enough to hide the latency of a multiply. */
__attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1")))
static uint32_t crc32_by_wide_folding(uint32_t crc, const uint8_t *p, size_t n) {
    const __m512i by_256 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1322d1430, 0x11542778a));
    const __m512i by_64 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1c6e41596, 0x154442bd4));

    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = _mm512_loadu_si512(p + 64);
    __m512i c = _mm512_loadu_si512(p + 128);
    __m512i d = _mm512_loadu_si512(p + 192);
    p += 256;
    n -= 256;
    while (n >= 256) {
        a = crc32_wide_fold(a, by_256, _mm512_loadu_si512(p));
        b = crc32_wide_fold(b, by_256, _mm512_loadu_si512(p + 64));
        c = crc32_wide_fold(c, by_256, _mm512_loadu_si512(p + 128));
        d = crc32_wide_fold(d, by_256, _mm512_loadu_si512(p + 192));
        p += 256;
        n -= 256;
    }
    a = crc32_wide_fold(a, by_64, b);
    a = crc32_wide_fold(a, by_64, c);
    a = crc32_wide_fold(a, by_64, d);
    while (n >= 64) {
        a = crc32_wide_fold(a, by_64, _mm512_loadu_si512(p));
        p += 64;
        n -= 64;
    }
    return crc32_finish(_mm512_castsi512_si128(a), _mm512_extracti32x4_epi32(a, 1), _mm512_extracti32x4_epi32(a, 2),
                        _mm512_extracti32x4_epi32(a, 3), (const __m128i *)p, n);
}
#endif

static uint32_t crc32_of(uint32_t value, const uint8_t *p, size_t n) {
    uint32_t crc = ~value;
#if defined(__x86_64__)
    if (crc_by_multiplication && n >= 64) {
        size_t folded = n & ~(size_t)15;
        if (crc_by_wide_multiplication && n >= 256)
            crc = crc32_by_wide_folding(crc, p, folded);
        else if (crc_by_double_multiplication && n >= 128)
            crc = crc32_by_double_folding(crc, p, folded);
        else
            crc = crc32_by_folding(crc, p, folded);
        p += folded;
        n -= folded;
    }
#endif
    return ~crc32_by_table(crc_table, crc, p, n);
}

#if defined(__x86_64__)
__attribute__((target("sse4.2")))
static uint32_t crc32c_by_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t state = crc, word;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        state = _mm_crc32_u64(state, word);
    }
    return crc32_by_table(crc_c_table, (uint32_t)state, p, n);
}
#endif

static uint32_t crc32c_of(uint32_t value, const uint8_t *p, size_t n) {
#if defined(__x86_64__)
    if (crc_c_by_instruction) return ~crc32c_by_instruction(~value, p, n);
#endif
    return ~crc32_by_table(crc_c_table, ~value, p, n);
}

#endif
