/* A machine whose clock is CLOCK_OFF seconds ahead (or behind): loaded before munged and slurmd. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long off(void)
{
	const char *text = getenv("CLOCK_OFF");
	return text ? atol(text) : 0;
}

time_t time(time_t *where)
{
	struct timespec now;
	int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");

	real(CLOCK_REALTIME, &now);
	now.tv_sec += off();
	if (where)
		*where = now.tv_sec;
	return now.tv_sec;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
	int code = real(clock, now);

	if (!code && clock == CLOCK_REALTIME)
		now->tv_sec += off();
	return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
	int code = real(now, zone);

	if (!code && now)
		now->tv_sec += off();
	return code;
}
