//! What a process that reads the network keeps of its rights: none, no process beside itself, and nobody to hand a descriptor to.

use std::{collections::BTreeMap, io};

use rustix::{
    process::{self, Gid, Signal, Uid},
    thread::{self, CapabilitySet, CapabilitySets},
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, sock_filter,
};

/// What of a socket's type is not one of its flags.
const SOCKET_TYPE: libc::c_int = 0xf;

/// Whether a process may open Unix sockets of its own. Descriptors can be handed to others over them (unix(7), SCM_RIGHTS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnixSockets {
    Opens,
    OpensNone,
}

/// What could not be taken from it.
#[derive(Debug)]
pub(crate) struct Confined {
    /// It is root still: its user namespace has nobody else.
    pub(crate) is_root: bool,
    /// Why the kernel refuses it none of [`refused`].
    pub(crate) unfiltered: Option<io::Error>,
}

/// Gives up every right for ever, and becomes `user` if this is root. To be called while there is one thread (capabilities(7)).
pub(crate) fn confine(user: u32, sockets: UnixSockets) -> io::Result<Confined> {
    // Or it could type into the terminal that the other process was started from (TIOCSTI), and read what is typed there.
    process::setsid().map(drop).or_else(|error| match error {
        // It leads a session already.
        rustix::io::Errno::PERM => Ok(()),
        other => Err(other),
    })?;
    close_inherited();
    for capability in CapabilitySet::all().iter() {
        // Only who may do that has something to lose by it: without new privileges it is never looked at.
        thread::remove_capability_from_bounding_set(capability).unwrap_or_default();
    }
    if process::geteuid().is_root() {
        become_user(user)?;
    }
    thread::clear_ambient_capability_set()?;
    thread::set_capabilities(
        None,
        CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        },
    )?;
    thread::set_no_new_privs(true)?;
    process::set_dumpable_behavior(process::DumpableBehavior::NotDumpable)?;
    process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(Confined {
        is_root: process::geteuid().is_root(),
        unfiltered: filter_calls(sockets).err(),
    })
}

/// Whatever whoever started us has left open is not this process's to have. Before Linux 5.9 it stays.
fn close_inherited() {
    let (first, last, flags) = (3_u32, u32::MAX, 0_u32);
    #[expect(
        unsafe_code,
        reason = "no safe wrapper closes what this process has not opened"
    )]
    // SAFETY: this process has opened nothing yet that it still has, so nobody holds one of these descriptors.
    unsafe {
        libc::syscall(libc::SYS_close_range, first, last, flags);
    }
}

fn become_user(user: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    let became = thread::set_thread_res_gid(gid, gid, gid)
        .and_then(|()| thread::set_thread_groups(&[]))
        .and_then(|()| thread::set_thread_res_uid(uid, uid, uid));
    match became {
        // A user namespace that has nobody but its root, who is an ordinary user outside (user_namespaces(7)).
        Err(rustix::io::Errno::INVAL) => Ok(()),
        other => Ok(other?),
    }
}

/// Has the kernel refuse this thread, and those that it starts, the calls of [`refused`], for ever (seccomp(2)).
fn filter_calls(sockets: UnixSockets) -> io::Result<()> {
    let programs = [
        native_calls(),
        // The C library falls back to clone(2), whose flags can be seen here, when it is told that there is none.
        program([(libc::SYS_clone3, Vec::new())].into(), libc::ENOSYS)?,
        program(refused(sockets)?, libc::EPERM)?,
    ];
    let mut programs = programs.iter().filter(|program| !program.is_empty());
    programs.try_for_each(|program| apply_filter(program).map_err(io::Error::other))
}

/// The calls that one who took the process over would outlive it by, hand on what it has, or get more.
fn refused(sockets: UnixSockets) -> io::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    let always = [
        // Other programs, and the memory and descriptors of other processes.
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        // Calls that no filter sees.
        libc::SYS_io_uring_setup,
        // Parts of the kernel that nothing here needs.
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
    ];
    let mut rules: BTreeMap<_, _> = always.map(|call| (call, Vec::new())).into();
    #[cfg(target_arch = "x86_64")]
    rules.extend([libc::SYS_fork, libc::SYS_vfork].map(|call| (call, Vec::new())));
    // A thread ends with its process, another process does not.
    let is_no_thread = masked(0, libc::CLONE_THREAD, 0)?;
    rules.insert(libc::SYS_clone, vec![rule(is_no_thread)?]);
    // It is killed with the process that started it, and others of its user may not look into it.
    let unbound = [libc::PR_SET_PDEATHSIG, libc::PR_SET_DUMPABLE];
    let unbound = unbound.map(|option| rule(equal(0, option)?));
    let unbound: io::Result<_> = unbound.into_iter().collect();
    rules.insert(libc::SYS_prctl, unbound?);
    // Whoever closes such a socket last waits for as long as it says, and that may be the other process (socket(7)).
    let lingers = [equal(1, libc::SOL_SOCKET)?, equal(2, libc::SO_LINGER)?];
    let lingers = SeccompRule::new(lingers.into()).map_err(io::Error::other)?;
    rules.insert(libc::SYS_setsockopt, vec![lingers]);
    if sockets == UnixSockets::OpensNone {
        rules.insert(libc::SYS_socket, vec![rule(equal(0, libc::AF_UNIX)?)?]);
        // Those of a pair that keep no connection send to any address: both types are datagrams (unix(7)).
        let datagrams = [libc::SOCK_DGRAM, libc::SOCK_RAW];
        let datagrams = datagrams.map(|kind| rule(masked(1, SOCKET_TYPE, kind)?));
        let datagrams: io::Result<_> = datagrams.into_iter().collect();
        rules.insert(libc::SYS_socketpair, datagrams?);
    }
    Ok(rules)
}

/// Refuses the calls of other ABIs, whose numbers are others.
fn native_calls() -> BpfProgram {
    const FIRST_OF_X32: u32 = 0x4000_0000;
    // Those of another architecture end the process, by what stands first in each of the other programs; those of x32 are the same one's.
    if cfg!(not(target_arch = "x86_64")) {
        return BpfProgram::new();
    }
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let jump = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let no_such_call = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    // The number of the call is the first thing in `seccomp_data`.
    vec![
        step(load, 0, 0, 0),
        step(jump, 0, 1, FIRST_OF_X32),
        step(answer, 0, 0, no_such_call),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    let code = u16::try_from(code).unwrap_or_default();
    sock_filter { code, jt, jf, k }
}

/// Answers what fits one of the rules with an error, and lets all else pass.
fn program(rules: BTreeMap<i64, Vec<SeccompRule>>, error: libc::c_int) -> io::Result<BpfProgram> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let answer = SeccompAction::Errno(error.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, architecture);
    let program = filter.and_then(BpfProgram::try_from);
    program.map_err(io::Error::other)
}

fn rule(condition: SeccompCondition) -> io::Result<SeccompRule> {
    SeccompRule::new(vec![condition]).map_err(io::Error::other)
}

fn equal(argument: u8, value: libc::c_int) -> io::Result<SeccompCondition> {
    compared(argument, SeccompCmpOp::Eq, value)
}

fn masked(argument: u8, mask: libc::c_int, value: libc::c_int) -> io::Result<SeccompCondition> {
    compared(argument, SeccompCmpOp::MaskedEq(bits(mask)), value)
}

fn compared(
    argument: u8,
    operator: SeccompCmpOp,
    value: libc::c_int,
) -> io::Result<SeccompCondition> {
    let compared = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, bits(value));
    compared.map_err(io::Error::other)
}

/// Of an argument the kernel looks at 32 bits.
fn bits(value: libc::c_int) -> u64 {
    value.cast_unsigned().into()
}

#[cfg(test)]
mod tests {
    use std::{
        io::ErrorKind,
        os::unix::{
            net::{UnixDatagram, UnixStream},
            process::CommandExt,
        },
        process::Command,
        time::Duration,
    };

    use socket2::SockRef;

    use super::*;

    /// What comes of it in a thread that is refused calls as the process's first is.
    fn filtered<T: Send>(sockets: UnixSockets, what: impl FnOnce() -> T + Send) -> T {
        let thread = || {
            filter_calls(sockets).expect("a kernel with seccomp");
            what()
        };
        std::thread::scope(|scope| scope.spawn(thread).join().expect("no panic"))
    }

    fn refusal<T>(result: io::Result<T>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind())
    }

    #[test]
    fn it_starts_threads_and_no_process() {
        let (spawned, replaced, thread) = filtered(UnixSockets::OpensNone, || {
            let spawned = Command::new("/bin/true").status();
            // What succeeds does not return.
            let replaced = Command::new("/bin/false").exec();
            (spawned, replaced, std::thread::spawn(|| 7).join())
        });
        assert_eq!(refusal(spawned), Some(ErrorKind::PermissionDenied));
        assert_eq!(replaced.kind(), ErrorKind::PermissionDenied);
        assert_eq!(thread.ok(), Some(7));
    }

    #[test]
    fn by_no_call_is_there_a_second_process() {
        #[cfg(target_arch = "x86_64")]
        let calls = [
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_fork,
            libc::SYS_vfork,
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let calls = [libc::SYS_clone, libc::SYS_clone3];
        for call in calls {
            let answer = filtered(UnixSockets::Opens, || begin_process(call));
            let refused = [Some(libc::EPERM), Some(libc::ENOSYS)];
            let error = answer.expect_err("refused");
            assert!(refused.contains(&error.raw_os_error()), "{call}: {error}");
        }
    }

    fn begin_process(call: libc::c_long) -> io::Result<()> {
        // The first field of clone3's, and of the others the flags: both as fork(2) has them.
        let arguments = [0_u64, 0, 0, 0, libc::SIGCHLD.unsigned_abs().into(), 0, 0, 0];
        let (first, second) = match call {
            libc::SYS_clone3 => (arguments.as_ptr().addr(), size_of_val(&arguments)),
            _ => (libc::SIGCHLD.unsigned_abs() as usize, 0),
        };
        #[expect(unsafe_code, reason = "the bare call is what is refused")]
        // SAFETY: the arguments are those of a fork, of which the child does nothing but end.
        let child = unsafe {
            let child = libc::syscall(call, first, second, 0, 0, 0);
            if child == 0 {
                libc::_exit(0);
            }
            child
        };
        match child {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    #[test]
    fn it_hands_nothing_on_but_over_the_sockets_that_it_has() {
        let nowhere = || UnixStream::connect("/nonexistent");
        let opens_none = filtered(UnixSockets::OpensNone, nowhere);
        assert_eq!(refusal(opens_none), Some(ErrorKind::PermissionDenied));
        let opens = filtered(UnixSockets::Opens, nowhere);
        assert_eq!(refusal(opens), Some(ErrorKind::NotFound));
        // The runtime wakes itself by one.
        assert!(filtered(UnixSockets::OpensNone, UnixStream::pair).is_ok());
        let pair = filtered(UnixSockets::OpensNone, UnixDatagram::pair);
        assert_eq!(refusal(pair), Some(ErrorKind::PermissionDenied));
    }

    #[test]
    fn it_stays_bound_to_its_parent_and_its_sockets_close_at_once() {
        let (unbound, lingers, buffers) = filtered(UnixSockets::Opens, || {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
            let socket = SockRef::from(&socket);
            (
                process::set_parent_process_death_signal(None),
                socket.set_linger(Some(Duration::from_secs(60))),
                socket.set_recv_buffer_size(1 << 16),
            )
        });
        assert_eq!(unbound, Err(rustix::io::Errno::PERM));
        assert_eq!(refusal(lingers), Some(ErrorKind::PermissionDenied));
        assert!(buffers.is_ok());
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn calls_of_the_other_abi_are_none() {
        const X32: libc::c_long = 0x4000_0000;
        #[expect(unsafe_code, reason = "the bare call is what is refused")]
        // SAFETY: it has no arguments.
        let call = || unsafe { libc::syscall(X32 | libc::SYS_getpid) };
        let answer = filtered(UnixSockets::Opens, || (call(), io::Error::last_os_error()));
        assert_eq!(answer.0, -1);
        assert_eq!(answer.1.raw_os_error(), Some(libc::ENOSYS));
    }
}
