/* Preloaded, hides what lies beyond AVX2 and FMA from every library of a process, on Linux and processors that can trap
   CPUID (Intel's since Ivy Bridge): each CPUID faults, and the handler answers it without AVX-512, VNNI and AMX.

       cc -shared -fPIC -o avx2_alone.so avx2_alone.c && LD_PRELOAD=./avx2_alone.so python ... */

#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };

static const unsigned EBX = 1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31;
static const unsigned ECX = 1u << 1 | 1u << 6 | 1u << 8 | 1u << 9 | 1u << 10 | 1u << 11 | 1u << 12 | 1u << 14;
static const unsigned EDX = 1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25;

static long trap(int on) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, !on); }

static void answer(int signal_number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)registers[REG_RIP];
    (void)info;
    if (code[0] != 0x0f || code[1] != 0xa2) { /* a fault of its own */
        signal(signal_number, SIG_DFL);
        return;
    }
    unsigned leaf = registers[REG_RAX], part = registers[REG_RCX], a, b, c, d;
    trap(0);
    __cpuid_count(leaf, part, a, b, c, d);
    trap(1);
    if (leaf == 7 && part == 0) {
        b &= ~EBX;
        c &= ~ECX;
        d &= ~EDX;
    } else if (leaf == 7) {
        a = b = c = d = 0;
    }
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, NULL);
    if (trap(1) != 0) {
        fputs("this machine cannot trap CPUID\n", stderr);
        _exit(1);
    }
}
