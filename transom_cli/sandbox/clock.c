/* A wall clock that can be set while processes run: LD_PRELOAD for the Python processes of one sandbox's runs.
 *
 * $TRANSOM_SANDBOX_CLOCKS is a folder with one file a host (a node's name, or "login"), which holds by how many
 * nanoseconds that host's clock is wrong, as an int64. Only the wall clock is touched: the monotonic one, timers and
 * what the kernel stamps on files are as they were. Slurm's own programs keep the machine's clock, since they wait for
 * absolute times of the wall clock in the kernel, which knows nothing of ours.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static const volatile int64_t *offset;

__attribute__((constructor)) static void find_the_clock(void)
{
	char program[PATH_MAX], path[PATH_MAX];
	const char *folder = getenv("TRANSOM_SANDBOX_CLOCKS"), *node = getenv("SLURMD_NODENAME"), *name;
	ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
	void *found;
	int fd;

	real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
	if (folder == NULL || length <= 0)
		return;
	program[length] = '\0';
	name = strrchr(program, '/');
	if (name == NULL || strncmp(name + 1, "python", 6) != 0)
		return;
	if (snprintf(path, sizeof path, "%s/%s", folder, node ? node : "login") >= (int)sizeof path)
		return;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	found = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (found != MAP_FAILED)
		offset = found;
}

int clock_gettime(clockid_t clock, struct timespec *told)
{
	int failed;

	if (real_clock_gettime == NULL) /* somebody asks before we were set up */
		real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
	failed = real_clock_gettime(clock, told);
	if (!failed && offset != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
		int64_t moved = told->tv_nsec + *offset % SECOND;
		told->tv_sec += *offset / SECOND + (moved >= SECOND) - (moved < 0);
		told->tv_nsec = (moved + SECOND) % SECOND;
	}
	return failed;
}

int gettimeofday(struct timeval *restrict told, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	told->tv_sec = now.tv_sec;
	told->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *told)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (told != NULL)
		*told = now.tv_sec;
	return now.tv_sec;
}
