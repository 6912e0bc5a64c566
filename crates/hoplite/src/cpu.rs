//! What processes cost: CPU time and resident memory, read from /proc.

use std::{fs, io, time::Duration};

/// A process that is watched, under the name that the tables use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    /// `client`, `relay1`, …
    pub(crate) name: String,
    /// Its process id.
    pub(crate) pid: u32,
}

/// CPU time of several processes since a moment.
#[derive(Debug)]
pub(crate) struct Meter<'a> {
    watched: &'a [Watched],
    start: Vec<Duration>,
}

impl<'a> Meter<'a> {
    /// Starts to count.
    pub(crate) fn start(watched: &'a [Watched]) -> io::Result<Self> {
        let start = watched
            .iter()
            .map(|process| cpu_time(process.pid))
            .collect::<Result<_, _>>()?;
        Ok(Self { watched, start })
    }

    /// User and system time of each since the start, in seconds.
    pub(crate) fn stop(&self) -> io::Result<Vec<(String, f64)>> {
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

/// User and system time of a process: its threads' nanoseconds where the kernel counts them. Clock ticks also count
/// threads that have ended, so they are taken where they are more.
pub(crate) fn cpu_time(pid: u32) -> io::Result<Duration> {
    let coarse = by_ticks(pid)?;
    Ok(by_scheduler(pid).map_or(coarse, |fine| fine.max(coarse)))
}

/// The first number of each thread's `schedstat` is its time on a CPU in nanoseconds. A thread may end before it is
/// read; the clock ticks have its time.
fn by_scheduler(pid: u32) -> io::Result<Duration> {
    let mut sum = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        let spent = text
            .split_whitespace()
            .next()
            .and_then(|word| word.parse().ok());
        sum += Duration::from_nanos(spent.ok_or_else(unreadable)?);
    }
    Ok(sum)
}

/// proc_pid_stat(5): fields 14 and 15, counted behind the parenthesised name, in hundredths of a second.
fn by_ticks(pid: u32) -> io::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = text.rsplit_once(')').ok_or_else(unreadable)?;
    let ticks = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|word| word.parse::<u64>());
    let ticks: u64 = ticks.sum::<Result<_, _>>().map_err(|_| unreadable())?;
    Ok(Duration::from_millis(ticks * 10))
}

/// Resident memory of a process, in bytes.
pub(crate) fn resident(pid: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or_else(unreadable)? * 1024)
}

fn unreadable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "/proc is not what it should be")
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
        let (fine, coarse) = (
            by_scheduler(pid).expect("readable"),
            by_ticks(pid).expect("readable"),
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
            let read: Vec<_> = (0..2000).map(|_| by_scheduler(pid)).collect();
            done.store(true, Relaxed);
            assert!(read.iter().all(Result::is_ok), "{read:?}");
        });
    }

    #[test]
    fn a_process_has_memory() {
        assert!(resident(std::process::id()).expect("readable") > 1 << 20);
    }
}
