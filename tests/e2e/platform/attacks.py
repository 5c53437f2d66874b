"""What a hostile container tries: programs for Python inside it, each of which prints what it could do as JSON."""

ENVIRONMENT = """
import ctypes, subprocess, sys
program = '''
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, total = ctypes.c_int(), ctypes.c_size_t()
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
code = code or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
print(code, count.value, total.value >> 20)
'''
changes = [
    {"CUDA_VISIBLE_DEVICES": "0,1,2"}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": None},
    {"NVIDIA_VISIBLE_DEVICES": "all"}, {"MILLIGPU_TENANT": "/tmp"}, {"MILLIGPU_LIMITS": "/tmp/limits"},
    {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libcuda.so.1"}, {"LD_LIBRARY_PATH": "/usr/lib64"},
    {"MILLIGPU_SOFTGPU": "/tmp"}, {"MILLIGPU_SOFTGPU": None}, {"CUDA_MPS_PIPE_DIRECTORY": "/tmp"},
]
found = []
for change in changes:
    env = {key: value for key, value in {**os.environ, **change}.items() if value is not None}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    found.append(done.stdout.split())
print(json.dumps(found))
"""

WRITES = """
import stat
found, own = [], []
for line in open("/proc/self/mountinfo"):
    place = line.split()[4]
    if not place.startswith(("/run/milligpu", "/usr/lib")):
        continue
    inside = [os.path.join(at, name) for at, dirs, files in os.walk(place) for name in dirs + files]
    for path in [place, *inside]:
        def attempt(what, change):
            try:
                change()
                found.append([what, path])
            except OSError:
                pass
        if os.path.isdir(path):
            attempt("create", lambda: open(path + "/new", "w").close())
        elif not stat.S_ISSOCK(os.lstat(path).st_mode):
            attempt("write", lambda: os.close(os.open(path, os.O_RDWR)))
            attempt("truncate", lambda: os.truncate(path, os.path.getsize(path)))
        attempt("chmod", lambda: os.chmod(path, 0o777))
        attempt("rename", lambda: os.rename(path, path + ".old"))
        attempt("remove", lambda: os.unlink(path))
        attempt("attribute", lambda: os.setxattr(path, "user.x", b"1"))
print(json.dumps(sorted({(what, path) for what, path in found})))
"""

MOUNTS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
TENANT = b"/run/milligpu/tenant"
MS_REMOUNT, MS_BIND, NEWNS, NEWUSER = 32, 4096, 0x20000, 0x10000000
def call(name, *arguments):
    return libc[name](*arguments) == 0
def attempts():
    return {
        "remount": call("mount", b"none", TENANT, None, MS_REMOUNT | MS_BIND, None),
        "cover": call("mount", b"/tmp", TENANT, None, MS_BIND, None),
        "unmount": call("umount2", TENANT, 2),
        "proc": call("mount", b"proc", b"/mnt", b"proc", 0, None),
    }
plain = attempts()
reader, writer = os.pipe()
if os.fork() == 0:
    # In a user namespace of its own it may mount what it likes, but not make writable what was given read-only.
    inside = {"unshared": call("unshare", NEWUSER | NEWNS)}
    if inside["unshared"]:
        inside["remount"] = call("mount", b"none", TENANT, None, MS_REMOUNT | MS_BIND, None)
        inside["unmount"] = call("umount2", TENANT, 0)
        try:
            os.close(os.open(TENANT + b"/limits", os.O_RDWR))
            inside["write"] = True
        except OSError:
            inside["write"] = False
    os.write(writer, json.dumps(inside).encode())
    os._exit(0)
os.wait()
print(json.dumps([plain, json.loads(os.read(reader, 4096))]))
"""

SOCKETS = """
import stat
found = []
for at, dirs, files in os.walk("/"):
    dirs[:] = [name for name in dirs if os.path.join(at, name) not in ("/proc", "/sys")]
    for name in files:
        try:
            if stat.S_ISSOCK(os.lstat(os.path.join(at, name)).st_mode):
                found.append(os.path.join(at, name))
        except OSError:
            pass
abstract = [line.split()[7] for line in open("/proc/net/unix").readlines()[1:] if len(line.split()) > 7]
print(json.dumps([sorted(found), abstract]))
"""

FORGED = """
import glob, random, socket, struct
[card] = glob.glob("/run/milligpu/softgpu/*.sock")
def ask(kind, body):
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect(card)
        link.sendall(struct.pack("<II", kind, len(body)) + body)
        answer = link.recv(8)
        return struct.unpack("<II", answer)[0] if len(answer) == 8 else None
lost, order = 79, 10
found = {
    "xid": ask(8, struct.pack("<I", lost)),
    "settings": [ask(69, struct.pack(form, what, 1)) for form in ("<II", "<IQ", "<QQ") for what in range(1, 6)],
    "orders": [ask(order, struct.pack("<iI", pid, 1)) for pid in (1, os.getpid(), VICTIM)],
    "release": ask(3, struct.pack("<Q", 1 << 30)),
}
dice = random.Random(7)
for _ in range(300):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(card)
        try:
            link.send(dice.randbytes(dice.randrange(1, 64)))
        except OSError:
            pass
print(json.dumps(found))
"""

ARBITER = """
import random, socket, struct, time
dice, links, sent = random.Random(11), [], 0
for number in range(40):
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect("/run/milligpu/tenant/arbiter")
    link.setblocking(False)
    links.append(link)
until = time.monotonic() + 8
while time.monotonic() < until:
    for link in links:
        # Its GPU and others, every state, any generation, stamps of past and future, and what is no message at all.
        stamp = time.monotonic_ns() + dice.choice((-10**12, 0, 10**12))
        gpu, state = dice.choice((0, 1, 15, 255)), dice.randrange(256)
        message = struct.pack("<BBHIq", gpu, state, 0, dice.getrandbits(32), stamp)
        try:
            link.send(dice.choice((message, message, message[:7], dice.randbytes(900))))
            sent += 1
        except OSError:
            pass
    time.sleep(0.01)
print(json.dumps(sent))
"""

SPOILS = """
import random, time
dice = random.Random(3)
with open("/run/milligpu/tenant/usage", "r+b", buffering=0) as page:
    before = page.read()
    for content in (b"\\xff" * len(before), bytes(len(before)), dice.randbytes(len(before))):
        page.seek(0)
        page.write(content)
        time.sleep(1.5)
    page.truncate(0)
    time.sleep(3)
    page.seek(0)
    page.write(before)
print(json.dumps(len(before)))
"""

PROCESSES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH = 16
seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
traced = [pid for pid in range(1, 70000, 7) if pid not in seen and libc.ptrace(PTRACE_ATTACH, pid, None, None) == 0]
def opened(number):
    os.mknod("/tmp/device", 0o600 | 0o020000, os.makedev(195, number))
    try:
        os.close(os.open("/tmp/device", os.O_RDWR))
    except OSError as error:
        return error.errno
    finally:
        os.unlink("/tmp/device")
numbers = [opened(number) for number in (0, 1, 255)]
with open("/proc/self/status") as file:
    rights = next(line.split()[1] for line in file if line.startswith("CapEff"))
print(json.dumps([len(seen), traced, numbers, rights]))
"""

NETWORK = """
import http.client, ssl
node, agent, kubelet = NODE
def ask(method, path, body=None):
    link = http.client.HTTPConnection(node, agent, timeout=10)
    link.request(method, path, body)
    return link.getresponse().status
pages = ("/metrics", "/stats", "/livez")
refused = [ask(method, path, b"{}") for method in ("POST", "PUT", "PATCH", "DELETE") for path in pages]
strange = [ask("GET", path) for path in ("/../../etc/passwd", "/admin", "//", "/stats/../x")]
link = http.client.HTTPSConnection(node, kubelet, timeout=10, context=ssl._create_unverified_context())
link.request("GET", "/pods")
print(json.dumps([refused, strange, link.getresponse().status, ask("GET", "/livez")]))
"""
