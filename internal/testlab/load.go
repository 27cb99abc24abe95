package testlab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BurnCPU keeps every CPU that the test may use busy with perCPU processes,
// pinned, until the test ends or stop is called. Timers and softirqs then
// interrupt those, not the owners of sockets. It returns their ids; they are
// named "sh".
func BurnCPU(t testing.TB, perCPU int) (pids []int, stop func()) {
	t.Helper()

	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		t.Fatalf("read CPU affinity: %v", err)
	}
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
		stops = nil
	}
	t.Cleanup(stop)
	for cpu := range len(cpus) * 64 {
		if !cpus.IsSet(cpu) {
			continue
		}
		for range perCPU {
			pid, s, err := burn(cpu)
			if err != nil {
				t.Fatalf("keep CPU %d busy: %v", cpu, err)
			}
			pids = append(pids, pid)
			stops = append(stops, s)
		}
	}
	return pids, stop
}

// burn starts one process. Its parent thread stays until it ends, because the
// signal that ties the two is sent when the thread exits, not the process.
func burn(cpu int) (pid int, stop func(), err error) {
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started, quit, done := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()

		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		<-quit
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if err := <-started; err != nil {
		return 0, nil, err
	}
	stop = func() {
		close(quit)
		<-done
	}

	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(cmd.Process.Pid, &one); err != nil {
		stop()
		return 0, nil, fmt.Errorf("pin process: %w", err)
	}
	return cmd.Process.Pid, stop, nil
}

// Blast is how [Pair.BlastSYN] sends.
type Blast struct {
	// Port that receives the segments; a closed one answers each with a
	// reset.
	Port uint16
	// IPv6 instead of IPv4.
	IPv6 bool
	// Rate in segments a second; 0 is as fast as possible.
	Rate int
	// Count of segments.
	Count int
}

// Blasted is what [Pair.BlastSYN] did.
type Blasted struct {
	Sent    int
	Elapsed time.Duration
}

// Rate in segments a second.
func (b Blasted) Rate() float64 { return float64(b.Sent) / b.Elapsed.Seconds() }

// BlastSYN sends SYN segments that belong to no socket from A to B, from source
// ports 1024 to 65535 in turn. It occupies one thread and returns when all are
// sent or ctx ends, the latter with an error.
func (p *Pair) BlastSYN(ctx context.Context, b Blast) (Blasted, error) {
	var done Blasted
	err := p.A.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("create packet socket: %w", err)
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: p.A.Link.Index}); err != nil {
			return fmt.Errorf("bind to %s: %w", IfName, err)
		}
		done, err = newBlaster(fd, p, b).run(ctx, b.Rate, b.Count)
		return err
	})
	if err != nil {
		return done, fmt.Errorf("send SYN segments from %s: %w", p.A.Name, err)
	}
	return done, nil
}

// blastBatch is how many segments one system call sends; small enough for
// even pacing, large enough to amortise the call.
const blastBatch = 64

// mmsghdr is struct mmsghdr of sendmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

type blaster struct {
	fd     int
	frames [blastBatch][]byte
	iovs   [blastBatch]unix.Iovec
	msgs   [blastBatch]mmsghdr
	tcp    int
	pseudo uint32
	sent   int
}

func newBlaster(fd int, p *Pair, b Blast) *blaster {
	src, dst := p.A.Addr(0).Addr(), p.B.Addr(0).Addr()
	if b.IPv6 {
		src, dst = p.A.Link.Addr6, p.B.Link.Addr6
	}
	frame, tcp := synFrame(p, src, dst, b.Port)
	bl := &blaster{fd: fd, tcp: tcp}

	bl.pseudo = unix.IPPROTO_TCP + 20
	for _, addr := range []netip.Addr{src, dst} {
		bl.pseudo += sum16(addr.AsSlice())
	}
	for i := range bl.frames {
		bl.frames[i] = append([]byte(nil), frame...)
		bl.iovs[i] = unix.Iovec{Base: &bl.frames[i][0]}
		bl.iovs[i].SetLen(len(frame))
		bl.msgs[i].hdr.Iov = &bl.iovs[i]
		bl.msgs[i].hdr.SetIovlen(1)
	}
	return bl
}

// synFrame returns a frame without source port, sequence number and checksum,
// and where its TCP header starts.
func synFrame(p *Pair, src, dst netip.Addr, port uint16) (frame []byte, tcp int) {
	frame = append(frame, p.B.Link.MAC...)
	frame = append(frame, p.A.Link.MAC...)
	if src.Is4() {
		frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_IP)
		ip := []byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0}
		ip = append(ip, src.AsSlice()...)
		ip = append(ip, dst.AsSlice()...)
		binary.BigEndian.PutUint16(ip[10:], fold(sum16(ip)))
		frame = append(frame, ip...)
	} else {
		frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_IPV6)
		frame = append(frame, 0x60, 0, 0, 0, 0, 20, unix.IPPROTO_TCP, 64)
		frame = append(frame, src.AsSlice()...)
		frame = append(frame, dst.AsSlice()...)
	}
	tcp = len(frame)
	frame = append(frame, make([]byte, 20)...)
	binary.BigEndian.PutUint16(frame[tcp+2:], port)
	frame[tcp+12] = 5 << 4
	frame[tcp+13] = byte(SYN)
	binary.BigEndian.PutUint16(frame[tcp+14:], 65535)
	return frame, tcp
}

func sum16(b []byte) uint32 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func (bl *blaster) run(ctx context.Context, rate, count int) (Blasted, error) {
	start := time.Now()
	for bl.sent < count {
		if ctx.Err() != nil {
			return Blasted{bl.sent, time.Since(start)}, context.Cause(ctx)
		}
		due := count - bl.sent
		if rate > 0 {
			due = min(due, int(time.Since(start).Seconds()*float64(rate))-bl.sent)
			if due <= 0 {
				time.Sleep(200 * time.Microsecond)
				continue
			}
		}
		if err := bl.send(min(due, blastBatch)); err != nil {
			return Blasted{bl.sent, time.Since(start)}, err
		}
	}
	return Blasted{bl.sent, time.Since(start)}, nil
}

// send sends batch segments, each with a source port and sequence number of
// its own.
func (bl *blaster) send(batch int) error {
	for i := range batch {
		n := bl.sent + i
		tcp := bl.frames[i][bl.tcp:]
		binary.BigEndian.PutUint16(tcp, uint16(1024+n%(65536-1024)))
		binary.BigEndian.PutUint32(tcp[4:], uint32(n))
		binary.BigEndian.PutUint16(tcp[16:], 0)
		binary.BigEndian.PutUint16(tcp[16:], fold(bl.pseudo+sum16(tcp)))
	}
	for sent := 0; sent < batch; {
		r, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(bl.fd),
			uintptr(unsafe.Pointer(&bl.msgs[sent])), uintptr(batch-sent), 0, 0, 0)
		switch {
		case errno == 0:
			sent += int(r)
			bl.sent += int(r)
		case errors.Is(errno, unix.EINTR), errors.Is(errno, unix.EAGAIN), errors.Is(errno, unix.ENOBUFS):
			// Preempted by a signal, or the queue is full for now.
		default:
			return fmt.Errorf("sendmmsg: %w", errno)
		}
	}
	return nil
}
