/* The types of EGL that cudaEGL.h names: its functions are passed on, so nothing else is needed. */
#pragma once
typedef int EGLint;
typedef void *EGLImageKHR;
typedef void *EGLStreamKHR;
typedef void *EGLSyncKHR;
