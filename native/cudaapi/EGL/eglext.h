/* See egl.h. */
#pragma once
