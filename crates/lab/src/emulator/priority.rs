//! What the kernel is asked for so that packets leave in time: SCHED_FIFO, exact timers. It holds for the thread that asks.
//! Without the right to it the emulator works, and says so in its health.

use std::num::NonZeroU64;

/// Above every ordinary process, below the kernel's own threads.
pub(crate) const PRIORITY: libc::c_int = 10;
/// Niceness, where SCHED_FIFO is not allowed.
const NICE: libc::c_int = -11;

/// Asks for the calling thread; says whether it has real-time priority now. Its children have not.
pub(crate) fn ask() -> bool {
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).ok();
    let real_time = fifo();
    if !real_time {
        renice();
    }
    real_time
}

fn fifo() -> bool {
    // All that the kernel's sched_param has. musl's sched_setscheduler(3) refuses: POSIX means a process by it, Linux a thread.
    let parameters = [PRIORITY];
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the kernel reads one sched_param, which lives as long as the call; 0 is the calling thread.
    #[expect(unsafe_code, reason = "no safe wrapper sets a scheduling policy")]
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, parameters.as_ptr()) };
    result == 0
}

/// On Linux niceness is a thread's own; 0 is the calling thread.
fn renice() {
    rustix::process::setpriority_process(None, NICE).ok();
}
