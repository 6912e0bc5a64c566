//! What processes cost: processor time, from their clocks, and resident memory, from /proc.

use std::{fs, io, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// A process that is watched, under the name that the tables use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// `client`, `relay1`, …
    pub name: String,
    /// Its process id.
    pub pid: u32,
}

/// CPU time of several processes since a moment.
#[derive(Debug)]
pub struct Meter<'a> {
    watched: &'a [Watched],
    start: Vec<Duration>,
}

impl<'a> Meter<'a> {
    /// Starts to count.
    ///
    /// # Errors
    /// One of them is gone.
    pub fn start(watched: &'a [Watched]) -> io::Result<Self> {
        let start = watched
            .iter()
            .map(|process| cpu_time(process.pid))
            .collect::<Result<_, _>>()?;
        Ok(Self { watched, start })
    }

    /// User and system time of each since the start, in seconds.
    ///
    /// # Errors
    /// One of them is gone.
    pub fn stop(&self) -> io::Result<Vec<(String, f64)>> {
        let spent = |(process, start): (&Watched, &Duration)| {
            let now = cpu_time(process.pid)?;
            Ok((
                process.name.clone(),
                now.saturating_sub(*start).as_secs_f64(),
            ))
        };
        self.watched.iter().zip(&self.start).map(spent).collect()
    }
}

/// Processor time of a living process, all its threads, also those that have ended.
///
/// # Errors
/// There is no such process.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    // The kernel's encoding of a process' clock, as clock_getcpuclockid(3) makes it: CPUCLOCK_SCHED is 2.
    let clock = (!i32::try_from(pid).map_err(io::Error::other)? << 3) | 2;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid for writing; an unknown clock is an error, not undefined.
    #[expect(unsafe_code, reason = "no safe wrapper reads another process' clock")]
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).map_err(io::Error::other)?;
    let nanos = u32::try_from(time.tv_nsec).map_err(io::Error::other)?;
    Ok(Duration::new(seconds, nanos))
}

/// Processor time of the calling thread.
#[must_use]
pub fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Resident memory of a process, in bytes.
///
/// # Errors
/// There is no such process, or `/proc` does not show it.
pub fn resident(pid: u32) -> io::Result<u64> {
    memory(pid, "VmRSS:")
}

/// The most resident memory that a process has had, in bytes.
///
/// # Errors
/// There is no such process, or `/proc` does not show it.
pub fn peak_memory(pid: u32) -> io::Result<u64> {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let unreadable =
        || io::Error::new(io::ErrorKind::InvalidData, "/proc is not what it should be");
    Ok(kib.ok_or_else(unreadable)? * 1024)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    #[test]
    fn work_of_any_thread_is_counted() {
        let me = [Watched {
            name: "me".into(),
            pid: std::process::id(),
        }];
        let meter = Meter::start(&me).expect("readable");
        let spent = || meter.stop().expect("readable")[0].1;
        std::thread::scope(|scope| {
            let enough = scope.spawn(|| while spent() < 0.05 {});
            enough.join().expect("counted");
        });
        assert!(spent() >= 0.01, "an ended thread is counted too");
    }

    #[test]
    fn both_ways_of_counting_agree_roughly() {
        let pid = std::process::id();
        let stat = fs::read_to_string("/proc/self/stat").expect("readable");
        // proc_pid_stat(5): fields 14 and 15, counted behind the parenthesised name, in hundredths of a second.
        let fields = stat.rsplit_once(')').expect("a name").1.split_whitespace();
        let ticks: u64 = fields
            .skip(11)
            .take(2)
            .map(|word| word.parse::<u64>().expect("ticks"))
            .sum();
        let (fine, coarse) = (
            cpu_time(pid).expect("readable"),
            Duration::from_millis(ticks * 10),
        );
        assert!(coarse <= fine + Duration::from_secs(5) && fine <= coarse + Duration::from_secs(5));
    }

    #[test]
    fn a_thread_that_ends_meanwhile_does_not_end_the_counting() {
        let pid = std::process::id();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    std::thread::spawn(|| ()).join().expect("ended");
                }
            });
            let read: Vec<_> = (0..2000).map(|_| cpu_time(pid)).collect();
            done.store(true, Relaxed);
            assert!(read.iter().all(Result::is_ok), "{read:?}");
        });
    }

    #[test]
    fn a_process_has_memory() {
        let pid = std::process::id();
        let (now, peak) = (
            resident(pid).expect("readable"),
            peak_memory(pid).expect("readable"),
        );
        assert!(now > 100_000 && peak > 100_000);
    }

    #[test]
    fn a_process_that_is_not_there_has_no_clock() {
        assert!(cpu_time(0x3fff_fff0).is_err());
    }
}
