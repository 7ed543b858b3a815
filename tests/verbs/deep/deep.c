/*
 * A program whose work is in a library that finds what it needs before what the program has (RTLD_DEEPBIND), as servers load their
 * modules: deep LIBRARY ARGUMENT...
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
	int (*work)(int, char **) = library ? (int (*)(int, char **))dlsym(library, "main") : NULL;

	if (!work) {
		fprintf(stderr, "deep: %s\n", dlerror());
		return 1;
	}
	return work(argc - 1, argv + 1);
}
