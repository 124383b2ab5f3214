// Prints, for calls made from known functions, "name return-address" lines, then its own mappings. C++ so that names need
// demangling; what a symbol table cannot know (inlining) is switched off.
#include <cstdio>
#include <cstdlib>
#include <csetjmp>

#define KEEP __attribute__((noinline, noclone, used))

extern "C" KEEP void record(const char *name)
{
    printf("%s\t%lx\n", name, (unsigned long)__builtin_return_address(0));
}

static jmp_buf back;

// Never returns, so that a call to it can be the last instruction of its caller: the return address then lies in the
// function behind it.
extern "C" [[noreturn]] KEEP void record_last(const char *name)
{
    printf("%s\t%lx\n", name, (unsigned long)__builtin_return_address(0));
    longjmp(back, 1);
}

extern "C" KEEP void plain_c() { record("plain_c"); asm(""); }

extern "C" KEEP void ends_in_a_call() { record_last("ends_in_a_call"); }

extern "C" KEEP void behind_it() { record("behind_it"); asm(""); }

namespace store {
template <class T> struct Cache {
    KEEP void put(T, const char *)
    {
        record("store::Cache<int>::put(int, char const*)");
        asm("");
    }
};
}

static KEEP void local_only(int) { record("local_only(int)"); asm(""); }

extern "C" KEEP __attribute__((cold)) void rarely_called() { record("rarely_called"); asm(""); }

#if defined(__x86_64__)
// Assembly without type and size, as hand-written code often is.
extern "C" void assembly(const char *);
asm(".text\n.globl assembly\nassembly:\n\tsub $8, %rsp\n\tcall record@PLT\n\tadd $8, %rsp\n\tret\n");
#endif

int main()
{
    plain_c();
    if (!setjmp(back))
        ends_in_a_call();
    behind_it();
    store::Cache<int> c;
    c.put(1, "x");
    local_only(2);
    rarely_called();
#if defined(__x86_64__)
    assembly("assembly");
#endif
    puts("MAPS");
    FILE *f = fopen("/proc/self/maps", "r");
    for (int ch; (ch = fgetc(f)) != EOF;)
        putchar(ch);
    return 0;
}
