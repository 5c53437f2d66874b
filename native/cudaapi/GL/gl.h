/* The types of OpenGL that cudaGL.h names: its functions are passed on, so nothing else is needed. */
#pragma once
typedef unsigned GLuint;
typedef unsigned GLenum;
