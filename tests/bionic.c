/* What Android's C library has and glibc has not, or has otherwise, so that a library that was made for Android on x86-64
   can be loaded here. It is enough for libexecutorch.so and the two libraries that it wants, and for no other. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

char __sF[3][152]; /* stdin, stdout and stderr, as they were named of old */

int *__errno(void) { return __errno_location(); }

char *__gnu_strerror_r(int code, char *text, size_t size) { return strerror_r(code, text, size); }

void __assert2(const char *file, int line, const char *function, const char *what) {
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, function, what);
    abort();
}

size_t __strlen_chk(const char *text, size_t size) { return strlen(text); }
char *__strchr_chk(const char *text, int one, size_t size) { return strchr(text, one); }
char *__strrchr_chk(const char *text, int one, size_t size) { return strrchr(text, one); }
ssize_t __write_chk(int file, const void *bytes, size_t count, size_t size) { return write(file, bytes, count); }

int __system_property_get(const char *name, char *value) {
    *value = 0;
    return 0;
}

void android_set_abort_message(const char *text) { fprintf(stderr, "%s\n", text); }

int __android_log_write(int priority, const char *tag, const char *text) {
    return fprintf(stderr, "%s: %s\n", tag, text);
}

int __android_log_vprint(int priority, const char *tag, const char *format, va_list values) {
    fprintf(stderr, "%s: ", tag);
    int written = vfprintf(stderr, format, values);
    fputc('\n', stderr);
    return written;
}

int __android_log_print(int priority, const char *tag, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int written = __android_log_vprint(priority, tag, format, values);
    va_end(values);
    return written;
}

void __android_log_assert(const char *condition, const char *tag, const char *format, ...) {
    fprintf(stderr, "%s: %s\n", tag, condition ? condition : format);
    abort();
}

/* --- the same names with other numbers, sizes or files; who loads the library renames them, by their first letter --- */

long Sysconf(int name) {
    switch (name) {
        case 0x27: /* the size of a page, by both names */
        case 0x28: return getpagesize();
        case 0x60: return get_nprocs_conf();
        case 0x61: return get_nprocs();
        default: errno = EINVAL; return -1;
    }
}

int Sigfillset(void *set) {
    memset(set, 0xff, 8); /* Android's set of signals is smaller */
    return 0;
}

static FILE *here(void *file) {
    return file == __sF[0] ? stdin : file == __sF[1] ? stdout : file == __sF[2] ? stderr : file;
}

int Fflush(void *file) { return fflush(here(file)); }
int Fputc(int one, void *file) { return fputc(one, here(file)); }
int Fputs(const char *text, void *file) { return fputs(text, here(file)); }
size_t Fwrite(const void *bytes, size_t size, size_t count, void *file) { return fwrite(bytes, size, count, here(file)); }
int Vfprintf(void *file, const char *format, va_list values) { return vfprintf(here(file), format, values); }

int Fprintf(void *file, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int written = vfprintf(here(file), format, values);
    va_end(values);
    return written;
}
