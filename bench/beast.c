/* The animals of `bench.zoo` that take more than a shell and Python.
 *
 *   beast KIND WORD [ARGUMENT...]
 *
 * WORD only stands in the command line, where the observer looks for it. Each
 * ends by itself after SECONDS, whatever becomes of the zoo, and what it forks is bounded, so that what is
 * missed harms nobody.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECONDS 150 /* Longer than anybody has patience. */
/* Processes, dead ones that nobody has reaped included, above which what forks
 * on and on holds back: the machine has other work. */
#define CROWD 3000
/* Of what freezes a guardian: longer than anybody has to wait for a stop. */
#define FROZEN 30

static char **arguments;
static char stack[1 << 16];

static void nap(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Wait for the end; a fork has no alarm of its own. */
static void rest(void) {
    alarm(SECONDS);
    for (;;)
        pause();
}

static void hold_back(void) {
    struct sysinfo machine;
    if (sysinfo(&machine) == 0 && machine.procs > CROWD)
        nap(20);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int resting(void *nothing) {
    setsid();
    rest();
    return 0;
}

/* Fork links that leave their session and end, as fast as can be. */
static void chain(void) {
    for (double end = now() + SECONDS; now() < end; hold_back()) {
        if (fork() > 0)
            _exit(0);
        setsid();
    }
}

/* The same with vfork, and each link is another program. */
static void vfork_chain(void) {
    char end[32];
    double until = arguments[3] ? atof(arguments[3]) : now() + SECONDS;
    if (now() > until)
        return;
    hold_back();
    setsid();
    gcvt(until, 15, end);
    char *again[] = {arguments[0], arguments[1], arguments[2], end, NULL};
    if (vfork() == 0) {
        execv("/proc/self/exe", again);
        _exit(1);
    }
    _exit(0);
}

/* Make daemons that live for a moment, one every so many milliseconds. */
static void cron(void) {
    setsid();
    for (double end = now() + SECONDS; now() < end; nap(atoi(arguments[3]))) {
        hold_back();
        pid_t child = fork();
        if (child == 0) {
            setsid();
            if (fork() == 0)
                nap(50);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
}

/* Two that begin one another anew. */
static void pair(void) {
    for (double end = now() + SECONDS; now() < end;) {
        pid_t me = getpid(), child = fork();
        if (child > 0) {
            waitpid(child, NULL, 0);
        } else if (child == 0) {
            setsid();
            signal(SIGTERM, SIG_IGN);
            while (getppid() == me && now() < end)
                nap(1);
        } else {
            nap(1);
        }
        hold_back();
    }
}

static void beget(int number) {
    for (int i = 0; i < 3; i++)
        if (fork() == 0) {
            signal(SIGTERM, SIG_IGN);
            setsid();
            rest();
        }
    _exit(0);
}

static void *forever(void *nothing) {
    rest();
    return NULL;
}

/* A line of descent with many pids between its members, all but the last gone. */
static void far_apart(void) {
    for (int generation = 0; generation < 4; generation++) {
        for (int i = 0; i < 150; i++) {
            pid_t child = fork();
            if (child == 0)
                _exit(0);
            waitpid(child, NULL, 0);
        }
        if (fork() > 0)
            _exit(0);
        setsid();
    }
    rest();
}

/* As many processes as this user may have. */
static void fill(void) {
    struct rlimit limit = {40, 40};
    if (getuid() == 0)
        return;
    setrlimit(RLIMIT_NPROC, &limit);
    for (int i = 0; i < 64; i++)
        if (fork() == 0) {
            setsid();
            rest();
        }
    rest();
}

static void trace(pid_t pid, int seconds) {
    if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0)
        ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
    alarm(seconds);
    for (;;)
        pause();
}

int main(int count, char **given) {
    if (count < 3)
        return 2;
    arguments = given;
    const char *kind = given[1];
    if (!strcmp(kind, "chain")) {
        chain();
    } else if (!strcmp(kind, "vfork-chain")) {
        vfork_chain();
    } else if (!strcmp(kind, "cron")) {
        cron();
    } else if (!strcmp(kind, "pair")) {
        pair();
    } else if (!strcmp(kind, "far-apart")) {
        far_apart();
    } else if (!strcmp(kind, "fill")) {
        fill();
    } else if (!strcmp(kind, "traced")) {
        pid_t sibling = fork();
        if (sibling == 0)
            resting(NULL);
        trace(sibling, SECONDS);
    } else if (!strcmp(kind, "trace")) {
        trace(atoi(given[3]), FROZEN);
    } else if (!strcmp(kind, "vfork")) {
        /* The parent cannot be interrupted until the child execs or ends. */
        if (vfork() == 0)
            resting(NULL);
    } else if (!strcmp(kind, "threads")) {
        pthread_t thread;
        setsid();
        pthread_create(&thread, NULL, forever, NULL);
        pthread_exit(NULL);
    } else if (!strcmp(kind, "name")) {
        prctl(PR_SET_NAME, ") Z 1\n0 0 (");
        resting(NULL);
    } else if (!strcmp(kind, "closed")) {
        for (int i = 0; i < 1024; i++)
            close(i);
        if (fork() == 0)
            resting(NULL);
    } else if (!strcmp(kind, "begets")) {
        signal(SIGTERM, beget);
        setsid();
        rest();
    } else if (!strcmp(kind, "group")) {
        for (double end = now() + SECONDS; now() < end; nap(5))
            setpgid(0, getpgrp() == getpid() ? getsid(0) : 0);
    } else if (!strcmp(kind, "no-signal")) {
        /* One whose parent lives, and one whose parent is gone. */
        clone(resting, stack + sizeof stack, 0, NULL);
        if (fork() == 0) {
            clone(resting, stack + sizeof stack, 0, NULL);
            _exit(0);
        }
        rest();
    } else if (!strcmp(kind, "sibling")) {
        /* A child of our parent's, that is of the guardian's; then the rest. */
        clone(resting, stack + sizeof stack, CLONE_PARENT | SIGCHLD, NULL);
        execvp(given[3], given + 3);
    } else if (!strcmp(kind, "subreaper")) {
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        signal(SIGTERM, SIG_IGN);
        setsid();
        for (int i = 0; i < 3; i++)
            if (fork() == 0) {
                if (fork() == 0)
                    resting(NULL);
                _exit(0);
            }
        rest();
    }
    return 1;
}
