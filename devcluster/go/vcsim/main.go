// A vCenter in software for tests: govmomi's simulator, with what it does not model of vGPUs: cards that hold so many
// gigabytes of profiles of one size, profiles that change only while a VM is off, profiles that cannot be suspended.
// Like a real vCenter it refuses what does not fit. It also writes down each such attempt: a controller that knows
// what it does makes none.
//
//	vcsim -cards 1 -gigabytes 16
//
// It prints where it listens: the SDK's address, and that of the control.
//
// Control, as JSON over HTTP:
//
//	POST /machines  [{"name": "w1", "profile": "grid_v100-4q", "state": "poweredOn"}]  make the VMs be so
//	GET  /machines  what they are, and "refused": attempts to give a card twice
//	POST /faults    {"method": "SuspendVM_Task", "vm": "w1", "kind": "task", "message": "no space", "count": 1}
//	DELETE /faults  all of them
//	POST /away      {"away": true}  close every connection without an answer
//
// Faults: `call` the call itself is refused; `task` the task fails after delay_ms; `slow` it is done after delay_ms;
// `lie` the task says success, and nothing was done; `hang` it runs for delay_ms, or until it is canceled, and fails.
package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

const machinesMax = 16

var profileSize = regexp.MustCompile(`-(\d+)[qabc]$`)

type fault struct {
	Method  string `json:"method"`
	VM      string `json:"vm"` // "" for all
	Kind    string `json:"kind"`
	Message string `json:"message"`
	DelayMS int    `json:"delay_ms"`
	Count   int    `json:"count"` // 0: until cleared
	used    int
}

type machine struct {
	Name    string `json:"name"`
	Profile string `json:"profile"`
	State   string `json:"state"`
}

// world is what the simulator lacks: which VM is on which card, and the faults that are to happen.
type world struct {
	sync.Mutex
	cards     []map[string]string // per card, the VMs on it and their profiles
	gigabytes int
	refused   []string
	rules     []*fault
}

func (w *world) fault(method, vm string) *fault {
	w.Lock()
	defer w.Unlock()
	for _, rule := range w.rules {
		if rule.Method == method && (rule.VM == "" || rule.VM == vm) && (rule.Count == 0 || rule.used < rule.Count) {
			rule.used++
			return rule
		}
	}
	return nil
}

func size(profile string) int {
	found := profileSize.FindStringSubmatch(profile)
	if found == nil {
		return 0
	}
	gigabytes, _ := strconv.Atoi(found[1])
	return gigabytes
}

// take puts a VM onto a card: one with room whose profiles all have its size.
func (w *world) take(vm, profile string) bool {
	w.Lock()
	defer w.Unlock()
	if profile == "" {
		return true
	}
	for _, card := range w.cards {
		if _, there := card[vm]; there {
			return true
		}
	}
	for _, card := range w.cards {
		fits := (len(card)+1)*size(profile) <= w.gigabytes
		for _, other := range card {
			fits = fits && size(other) == size(profile)
		}
		if fits {
			card[vm] = profile
			return true
		}
	}
	w.refused = append(w.refused, fmt.Sprintf("%s with %s: no card has room", vm, profile))
	return false
}

func (w *world) release(vm string) {
	w.Lock()
	defer w.Unlock()
	for _, card := range w.cards {
		delete(card, vm)
	}
}

// judged answers in a VM's place, with a task that does what vCenter would, or what a fault says. The simulator
// prefers the session's object to what Registry.Handler returns, so the call is sent to another reference instead.
type judged struct {
	world *world
	vm    *simulator.VirtualMachine
	rule  *fault
	self  types.ManagedObjectReference
}

func (j *judged) Reference() types.ManagedObjectReference { return j.self }

func (j *judged) run(ctx *simulator.Context, name string, do func() types.BaseMethodFault) types.ManagedObjectReference {
	task := simulator.CreateTask(j, name, func(task *simulator.Task) (types.AnyType, types.BaseMethodFault) {
		if j.rule == nil {
			return nil, do()
		}
		for until := time.Now().Add(time.Duration(j.rule.DelayMS) * time.Millisecond); time.Now().Before(until); {
			if task.Info.Cancelled {
				return nil, new(types.RequestCanceled)
			}
			time.Sleep(5 * time.Millisecond)
		}
		switch j.rule.Kind {
		case "slow":
			return nil, do()
		case "lie":
			return nil, nil
		}
		return nil, &types.GenericVmConfigFault{Reason: j.rule.Message}
	})
	task.Info.Cancelable = true
	task.Info.DescriptionId = "VirtualMachine." + strings.ToLower(name[:1]) + strings.TrimSuffix(name[1:], "VM_Task")
	ref := task.Run(ctx)
	vm := j.vm
	ctx.WithLock(task, func() { task.Info.Entity, task.Info.EntityName = &vm.Self, vm.Name })
	ctx.WithLock(vm, func() {
		ctx.Update(vm, []types.PropertyChange{{Name: "recentTask", Val: []types.ManagedObjectReference{ref}}})
	})
	return ref
}

// carryOut lets the simulator do what the model allows, and waits for it.
func (j *judged) carryOut(ctx *simulator.Context, call func() types.ManagedObjectReference) types.BaseMethodFault {
	var ref types.ManagedObjectReference
	ctx.WithLock(j.vm, func() { ref = call() })
	task := ctx.Map.Get(ref).(*simulator.Task)
	task.Wait()
	if task.Info.Error != nil {
		return task.Info.Error.Fault
	}
	return nil
}

func (j *judged) PowerOnVMTask(ctx *simulator.Context, req *types.PowerOnVM_Task) soap.HasFault {
	ref := j.run(ctx, "PowerOnVM_Task", func() types.BaseMethodFault {
		if j.vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn {
			return &types.InvalidPowerState{ExistingState: j.vm.Runtime.PowerState}
		}
		if !j.world.take(j.vm.Name, profile(j.vm)) {
			return new(types.InsufficientGraphicsResourcesFault)
		}
		return j.carryOut(ctx, func() types.ManagedObjectReference {
			return j.vm.PowerOnVMTask(ctx, req).(*methods.PowerOnVM_TaskBody).Res.Returnval
		})
	})
	return &methods.PowerOnVM_TaskBody{Res: &types.PowerOnVM_TaskResponse{Returnval: ref}}
}

func (j *judged) PowerOffVMTask(ctx *simulator.Context, req *types.PowerOffVM_Task) soap.HasFault {
	ref := j.run(ctx, "PowerOffVM_Task", func() types.BaseMethodFault {
		failed := j.carryOut(ctx, func() types.ManagedObjectReference {
			return j.vm.PowerOffVMTask(ctx, req).(*methods.PowerOffVM_TaskBody).Res.Returnval
		})
		if failed == nil {
			j.world.release(j.vm.Name)
		}
		return failed
	})
	return &methods.PowerOffVM_TaskBody{Res: &types.PowerOffVM_TaskResponse{Returnval: ref}}
}

func (j *judged) SuspendVMTask(ctx *simulator.Context, req *types.SuspendVM_Task) soap.HasFault {
	ref := j.run(ctx, "SuspendVM_Task", func() types.BaseMethodFault {
		failed := j.carryOut(ctx, func() types.ManagedObjectReference {
			return j.vm.SuspendVMTask(ctx, req).(*methods.SuspendVM_TaskBody).Res.Returnval
		})
		if failed == nil {
			j.world.release(j.vm.Name)
		}
		return failed
	})
	return &methods.SuspendVM_TaskBody{Res: &types.SuspendVM_TaskResponse{Returnval: ref}}
}

func (j *judged) ReconfigVMTask(ctx *simulator.Context, req *types.ReconfigVM_Task) soap.HasFault {
	ref := j.run(ctx, "ReconfigVM_Task", func() types.BaseMethodFault {
		for _, each := range req.Spec.DeviceChange {
			device, ok := each.GetVirtualDeviceConfigSpec().Device.(*types.VirtualPCIPassthrough)
			if !ok {
				continue
			}
			if j.vm.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOff {
				return &types.InvalidPowerState{ExistingState: j.vm.Runtime.PowerState}
			}
			if size(vgpu(device)) == 0 {
				return &types.InvalidDeviceSpec{}
			}
		}
		return j.carryOut(ctx, func() types.ManagedObjectReference {
			return j.vm.ReconfigVMTask(ctx, req).(*methods.ReconfigVM_TaskBody).Res.Returnval
		})
	})
	return &methods.ReconfigVM_TaskBody{Res: &types.ReconfigVM_TaskResponse{Returnval: ref}}
}

func vgpu(device *types.VirtualPCIPassthrough) string {
	if backing, ok := device.Backing.(*types.VirtualPCIPassthroughVmiopBackingInfo); ok {
		return backing.Vgpu
	}
	return ""
}

func profile(vm *simulator.VirtualMachine) string {
	for _, each := range vm.Config.Hardware.Device {
		if device, ok := each.(*types.VirtualPCIPassthrough); ok {
			return vgpu(device)
		}
	}
	return ""
}

// fill gives a VM what pyVmomi cannot do without: it refuses an empty enumeration.
func fill(vm *simulator.VirtualMachine) {
	for _, runtime := range []*types.VirtualMachineRuntimeInfo{&vm.Runtime, &vm.Summary.Runtime} {
		runtime.FaultToleranceState = types.VirtualMachineFaultToleranceStateNotConfigured
		runtime.RecordReplayState = types.VirtualMachineRecordReplayStateInactive
	}
}

func (w *world) set(ctx *simulator.Context, all []mo.Entity, wanted []machine) error {
	if len(wanted) > len(all) {
		return fmt.Errorf("at most %d machines", len(all))
	}
	w.Lock()
	for index := range w.cards {
		w.cards[index] = map[string]string{}
	}
	w.refused, w.rules = nil, nil
	w.Unlock()
	for index, each := range all {
		vm, found := each.(*simulator.VirtualMachine), machine{fmt.Sprintf("unused-%d", index), "", "poweredOff"}
		if index < len(wanted) {
			found = wanted[index]
		}
		var devices []types.BaseVirtualDevice
		for _, device := range vm.Config.Hardware.Device {
			if _, ok := device.(*types.VirtualPCIPassthrough); !ok {
				devices = append(devices, device)
			}
		}
		if found.Profile != "" {
			backing := &types.VirtualPCIPassthroughVmiopBackingInfo{Vgpu: found.Profile}
			devices = append(devices, &types.VirtualPCIPassthrough{VirtualDevice: types.VirtualDevice{Key: 13000, Backing: backing}})
		}
		state := types.VirtualMachinePowerState(found.State)
		ctx.WithLock(vm, func() {
			ctx.Update(vm, []types.PropertyChange{
				{Name: "name", Val: found.Name},
				{Name: "config.name", Val: found.Name},
				{Name: "summary.config.name", Val: found.Name},
				{Name: "config.hardware.device", Val: devices},
				{Name: "runtime.powerState", Val: state},
				{Name: "summary.runtime.powerState", Val: state},
				{Name: "recentTask", Val: []types.ManagedObjectReference{}},
			})
		})
		if state == types.VirtualMachinePowerStatePoweredOn && !w.take(found.Name, found.Profile) {
			return fmt.Errorf("%s does not fit", found.Name)
		}
	}
	return nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "the SDK's address")
	control := flag.String("control", "127.0.0.1:0", "where faults are asked for")
	cards := flag.Int("cards", 1, "cards of the host")
	gigabytes := flag.Int("gigabytes", 16, "of each card")
	flag.Parse()

	model := simulator.VPX()
	defer model.Remove()
	model.Host, model.Cluster, model.Machine = 1, 0, machinesMax
	if err := model.Create(); err != nil {
		log.Fatal(err)
	}
	registry := model.Map()
	for _, each := range registry.All("HostSystem") {
		host := each.(*simulator.HostSystem)
		host.Config.SharedPassthruGpuTypes = []string{"grid_v100-4q", "grid_v100-8q", "grid_v100-16q", "grid_v100-2b"}
		for _, name := range host.Config.SharedPassthruGpuTypes {
			host.Config.SharedGpuCapabilities = append(host.Config.SharedGpuCapabilities,
				types.HostSharedGpuCapabilities{Vgpu: name, SuspendSupported: name != "grid_v100-2b"})
		}
	}
	machines := registry.All("VirtualMachine")
	for _, each := range machines {
		fill(each.(*simulator.VirtualMachine))
	}
	state := &world{gigabytes: *gigabytes, cards: make([]map[string]string, *cards)}
	if err := state.set(model.Service.Context, machines, nil); err != nil {
		log.Fatal(err)
	}
	var made atomic.Int64
	registry.Handler = func(ctx *simulator.Context, method *simulator.Method) (mo.Reference, types.BaseMethodFault) {
		vm, ok := ctx.Map.Get(method.This).(*simulator.VirtualMachine)
		if !ok {
			return nil, nil
		}
		switch method.Name {
		case "PowerOnVM_Task", "PowerOffVM_Task", "SuspendVM_Task", "ReconfigVM_Task":
		default:
			return nil, nil
		}
		rule := state.fault(method.Name, vm.Name)
		if rule != nil && rule.Kind == "call" {
			return nil, &types.ConcurrentAccess{}
		}
		self := types.ManagedObjectReference{Type: "Judged", Value: fmt.Sprintf("judged-%d", made.Add(1))}
		answer := &judged{state, vm, rule, self}
		ctx.Map.Put(answer)
		method.This = self
		return answer, nil
	}
	model.Service.Listen = &url.URL{Host: *listen, User: url.UserPassword("milligpu", "secret")}
	model.Service.TLS = new(tls.Config) // a certificate of httptest's own
	server := model.Service.NewServer()
	defer server.Close()
	var away atomic.Bool
	inner := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			panic(http.ErrAbortHandler)
		}
		inner.ServeHTTP(w, r)
	})

	certificate, err := server.CertificateFile()
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("GET /ca", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, certificate) })
	http.HandleFunc("POST /machines", func(w http.ResponseWriter, r *http.Request) {
		var wanted []machine
		err := json.NewDecoder(r.Body).Decode(&wanted)
		if err == nil {
			err = state.set(model.Service.Context, machines, wanted)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	http.HandleFunc("GET /machines", func(w http.ResponseWriter, _ *http.Request) {
		found := []machine{}
		for _, each := range machines {
			vm := each.(*simulator.VirtualMachine)
			model.Service.Context.WithLock(vm, func() {
				found = append(found, machine{vm.Name, profile(vm), string(vm.Runtime.PowerState)})
			})
		}
		state.Lock()
		defer state.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]any{"machines": found, "refused": append([]string{}, state.refused...)})
	})
	http.HandleFunc("POST /faults", func(w http.ResponseWriter, r *http.Request) {
		rule := new(fault)
		if err := json.NewDecoder(r.Body).Decode(rule); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		state.Lock()
		defer state.Unlock()
		state.rules = append(state.rules, rule)
	})
	http.HandleFunc("DELETE /faults", func(http.ResponseWriter, *http.Request) {
		state.Lock()
		defer state.Unlock()
		state.rules = nil
	})
	http.HandleFunc("POST /away", func(w http.ResponseWriter, r *http.Request) {
		var wanted struct{ Away bool }
		if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		away.Store(wanted.Away)
	})
	listener, err := net.Listen("tcp", *control)
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(http.Serve(listener, nil)) }()
	fmt.Println(server.URL.Host, listener.Addr())
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}
