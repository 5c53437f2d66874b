/* Replaces libdl and libpthread while a library for container images is linked, and only then.
 *
 * Container images bring their own libc. Since glibc 2.34 these functions are in libc.so.6 under new versions that an
 * older glibc does not have. Every glibc since 2.17 has them under their old versions, in the libraries they used to be
 * in. */
#define NOBODY_CALLS_THIS(name)                                                                                        \
    void name(void);                                                                                                   \
    void name(void) {}

#ifdef FOR_LIBDL
NOBODY_CALLS_THIS(dladdr)
NOBODY_CALLS_THIS(dlclose)
NOBODY_CALLS_THIS(dlerror)
NOBODY_CALLS_THIS(dlopen)
NOBODY_CALLS_THIS(dlsym)
#else
NOBODY_CALLS_THIS(pthread_attr_setstacksize)
NOBODY_CALLS_THIS(pthread_create)
NOBODY_CALLS_THIS(pthread_detach)
NOBODY_CALLS_THIS(pthread_getspecific)
NOBODY_CALLS_THIS(pthread_join)
NOBODY_CALLS_THIS(pthread_key_create)
NOBODY_CALLS_THIS(pthread_key_delete)
NOBODY_CALLS_THIS(pthread_mutex_trylock)
NOBODY_CALLS_THIS(pthread_once)
NOBODY_CALLS_THIS(pthread_rwlock_destroy)
NOBODY_CALLS_THIS(pthread_rwlock_init)
NOBODY_CALLS_THIS(pthread_rwlock_rdlock)
NOBODY_CALLS_THIS(pthread_rwlock_unlock)
NOBODY_CALLS_THIS(pthread_rwlock_wrlock)
NOBODY_CALLS_THIS(pthread_setspecific)
NOBODY_CALLS_THIS(pthread_sigmask)
#endif
