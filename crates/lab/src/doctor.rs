//! `hoplite-lab doctor`: whether this machine has what the lab and its subjects need, and for what is missing the command that installs it.
//! It asks the machine, changes nothing, and succeeds if a scenario (or `smoke`) can be run.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    cli::DoctorArgs,
    errors::{Complaint, Failure},
    experiments::{
        scenario::{
            self,
            subject_file::{Needs, Places, SubjectFile, Want, filled},
        },
        world::{
            self,
            power::{self, Counter},
        },
    },
    netns::{process::find_program, tun},
};

/// What `doctor` answers for if it is not told.
const USUAL: &str = "smoke";

/// One thing that was looked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Check {
    /// `machine`, `workloads`, or the subject that wants it.
    of: String,
    /// What was looked for.
    check: String,
    /// How it stands.
    state: State,
    /// Whether the scenario cannot be run without it.
    needed: bool,
    /// Whether the scenario leaves out, where it is missing, whatever wants it.
    optional: bool,
    /// What was found, such as a version, or why it is missing.
    found: String,
    /// What the user can do if it is not there; empty if it is.
    remedy: String,
    /// Of a subject's program: the command that installs it, there or not; `None` if there is none.
    install: Option<String>,
}

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// There.
    Ok,
    /// There, but figures will be worse for it.
    Poor,
    /// Not there.
    Missing,
}

/// Does it.
///
/// # Errors
/// If the scenario is wrong, or something is missing that it needs.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let path = args.scenario.as_deref().unwrap_or_else(|| Path::new(USUAL));
    let scenario = scenario::load(path)?;
    let wanted = scenario.wants();
    let mut checks = machine_checks();
    for (subject, wants) in &wanted {
        checks.extend(subject_checks(subject, wants));
    }
    checks.extend(program_checks(
        "workloads",
        scenario.needs_of_workloads(),
        true,
    ));
    if args.scenario.is_none() {
        for subject in &others(&wanted) {
            checks.extend(other_checks(subject));
        }
    }
    let written = if args.json {
        lines(&checks)
    } else {
        write_table(&mut io::stdout().lock(), &checks)
    };
    said(written)?;
    verdict(&scenario.name, &checks)
}

/// Built-in subjects that the scenario does not use.
fn others(wanted: &[(&SubjectFile, &[Want])]) -> Vec<SubjectFile> {
    let mut others = scenario::built_in_subjects();
    others.retain(|subject| {
        let same = |(other, _): &(&SubjectFile, &[Want])| other.name == subject.name;
        !wanted.iter().any(same)
    });
    others
}

fn lines(checks: &[Check]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for check in checks {
        writeln!(out, "{}", serde_json::to_string(check)?)?;
    }
    Ok(())
}

fn said(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            "writing what was found",
            error,
            "see that stdout is open",
        )),
        _ => Ok(()),
    }
}

fn verdict(scenario: &str, checks: &[Check]) -> Result<(), Failure> {
    let blocks = |check: &&Check| check.needed && check.state == State::Missing;
    let missing: Vec<&Check> = checks.iter().filter(blocks).collect();
    let Some(first) = missing.first() else {
        return Ok(());
    };
    let mut names: Vec<&str> = missing.iter().map(|check| check.check.as_str()).collect();
    names.dedup();
    Err(Failure::new(
        format!("looking for what the scenario {scenario:?} needs"),
        format!("missing: {}", names.join(", ")),
        first.remedy.clone(),
    ))
}

/// Below that, captures of a long campaign fill the disk.
const ROOM: u64 = 2 << 30;

const NAMESPACES: &str = "namespaces";
const REAL_TIME: &str = "real-time priority";
const POWER: &str = "counters of power";

/// All of them.
fn machine_checks() -> Vec<Check> {
    let tun = answer("TUN devices", "/dev/net/tun can be opened", tun::check());
    let (namespaces, real_time) = match tun.state {
        State::Ok => of_a_world(world::check()),
        _ => unknown(),
    };
    vec![
        tun,
        namespaces,
        real_time,
        exact_timers(),
        processors(),
        power(),
        room(),
    ]
}

fn check(name: &str, state: State, found: impl Into<String>, remedy: &str) -> Check {
    Check {
        of: "machine".into(),
        check: name.into(),
        state,
        needed: state == State::Missing,
        optional: false,
        found: found.into(),
        remedy: remedy.into(),
        install: None,
    }
}

fn answer(name: &str, good: &str, result: Result<(), Failure>) -> Check {
    let complaint = match result {
        Ok(()) => {
            return Check {
                needed: true,
                ..check(name, State::Ok, good, "")
            };
        }
        Err(Failure::Failed(complaint)) => Some(complaint),
        Err(Failure::Wrong(complaints)) => complaints.into_iter().next(),
    };
    let unclear = || Complaint::new("", "it failed", "please report this");
    let Complaint { doing, why, remedy } = complaint.unwrap_or_else(unclear);
    check(name, State::Missing, format!("{doing}: {why}"), &remedy)
}

/// What cannot be tried without TUN devices.
fn unknown() -> (Check, Check) {
    let (found, remedy) = (
        "not tried: it wants TUN devices",
        "mend the TUN devices first",
    );
    (
        check(NAMESPACES, State::Missing, found, remedy),
        check(REAL_TIME, State::Poor, found, remedy),
    )
}

/// Only inside a world it shows whether its emulator may have real-time priority: a capability of this process does not reach into a
/// user namespace, a limit does.
fn of_a_world(made: Result<bool, Failure>) -> (Check, Check) {
    let real_time = match made {
        Ok(true) => check(REAL_TIME, State::Ok, "SCHED_FIFO is allowed", ""),
        Ok(false) => check(
            REAL_TIME,
            State::Poor,
            "SCHED_FIFO is not allowed: packets leave late on a busy machine",
            "run as root, or raise the limit of this shell: sudo prlimit --rtprio=10 --pid $$ (for good: \"USER - rtprio 10\" in \
             /etc/security/limits.conf)",
        ),
        Err(_) => check(
            REAL_TIME,
            State::Poor,
            "not tried: it wants namespaces",
            "mend the namespaces first",
        ),
    };
    let namespaces = answer(NAMESPACES, "a world was made", made.map(drop));
    (namespaces, real_time)
}

fn exact_timers() -> Check {
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: descriptor -1 is refused, and all pointers are null: nothing is read or written.
    #[expect(unsafe_code, reason = "only the bare call tells")]
    let answer = unsafe { libc::syscall(libc::SYS_epoll_pwait2, -1, none, 1, none, none, 0_usize) };
    let error = io::Error::last_os_error().raw_os_error();
    let absent = answer == -1 && error == Some(libc::ENOSYS);
    if absent {
        check(
            "exact timers",
            State::Poor,
            "the kernel has no epoll_pwait2: packets leave up to a millisecond late",
            "use Linux 5.11 or newer",
        )
    } else {
        check("exact timers", State::Ok, "epoll_pwait2", "")
    }
}

fn processors() -> Check {
    let count = thread::available_parallelism().map_or(1, usize::from);
    let found = format!("{count}");
    match count {
        0 | 1 => check(
            "processors",
            State::Poor,
            "1: the emulator has none for itself",
            "use a machine with at least two",
        ),
        _ => check("processors", State::Ok, found, ""),
    }
}

/// Where one stands: results go below it.
fn power() -> Check {
    let counters = power::counters();
    let names: Vec<&str> = counters.iter().map(Counter::name).collect();
    if names.is_empty() {
        return check(
            POWER,
            State::Poor,
            "none that can be read: what a subject costs is told as processor time alone",
            "run as root on a machine of its own with RAPL (/sys/class/powercap), or on its battery",
        );
    }
    check(POWER, State::Ok, names.join(", "), "")
}

fn room() -> Check {
    let free = rustix::fs::statvfs(Path::new("."))
        .map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
    let found = format!("{} GB free here", free / 1_000_000_000);
    if free >= ROOM {
        check("room", State::Ok, found, "")
    } else {
        check(
            "room",
            State::Poor,
            found,
            "make room, or let --out name another disk",
        )
    }
}

/// A program that takes longer to tell its version has none.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is read of an answer, and what is shown of its first line.
const ANSWER: u64 = 16 * 1024;
const SHOWN: usize = 60;

/// What is said of a program that no command installs.
const NO_COMMAND: &str = "no command installs it: see its project, and the subject's file";

/// What a subject needs as the scenario uses it. One that needs nothing says so.
fn subject_checks(subject: &SubjectFile, wants: &[Want]) -> Vec<Check> {
    if wants.is_empty() {
        return vec![nothing(subject, true)];
    }
    let places = Places::find(false).ok();
    let look = |want: &Want| Check {
        optional: want.optional,
        ..look_for(&subject.name, &want.needs, !want.optional, places.as_ref())
    };
    wants.iter().map(look).collect()
}

/// What a subject needs that the scenario does not use, whatever its parameters are.
fn other_checks(subject: &SubjectFile) -> Vec<Check> {
    if subject.needs.is_empty() {
        return vec![nothing(subject, false)];
    }
    program_checks(&subject.name, &subject.needs, false)
}

fn nothing(subject: &SubjectFile, needed: bool) -> Check {
    let found = "none but the lab's: nothing is to be installed";
    Check {
        of: subject.name.clone(),
        needed,
        ..check("programs", State::Ok, found, "")
    }
}

/// Programs that a subject needs, or the workloads do; `needed` if the scenario cannot do without them.
fn program_checks(of: &str, all: &[Needs], needed: bool) -> Vec<Check> {
    let places = Places::find(false).ok();
    let look = |needs: &Needs| look_for(of, needs, needed, places.as_ref());
    all.iter().map(look).collect()
}

fn look_for(of: &str, needs: &Needs, needed: bool, places: Option<&Places>) -> Check {
    let path = needs.find(places);
    let install = Some(needs.install.clone()).filter(|install| !install.is_empty());
    let (state, remedy) = match (&path, &install) {
        (Some(_), _) => (State::Ok, ""),
        (None, Some(install)) => (State::Missing, install.as_str()),
        (None, None) => (State::Missing, NO_COMMAND),
    };
    let remedy = remedy.to_owned();
    let found = match &path {
        Some(path) => {
            let words = needs.version.iter().map(|word| filled(word, places));
            version(&words.collect::<Vec<_>>()).unwrap_or_else(|| path.display().to_string())
        }
        None => "not found".into(),
    };
    Check {
        of: of.into(),
        check: shown(&needs.command).into(),
        state,
        needed,
        optional: false,
        found,
        remedy,
        install,
    }
}

fn shown(command: &str) -> &str {
    match command {
        "{hoplite}" => "hoplite",
        "{lab}" => "hoplite-lab",
        other => other,
    }
}

/// The first line that the command says, on stdout or else on stderr.
fn version(words: &[String]) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let (out, err) = (tempfile::tempfile().ok()?, tempfile::tempfile().ok()?);
    let mut command = Command::new(find_program(program)?);
    command.args(arguments).stdin(Stdio::null());
    command
        .stdout(out.try_clone().ok()?)
        .stderr(err.try_clone().ok()?);
    let mut child = command.spawn().ok()?;
    let until = Instant::now() + PATIENCE;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > until {
            child.kill().and_then(|()| child.wait()).ok();
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
    first_line(out).or_else(|| first_line(err))
}

fn first_line(file: File) -> Option<String> {
    let text = beginning(file).ok()?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let plain = line.chars().filter(|c| !c.is_control());
    Some(plain.take(SHOWN).collect())
}

fn beginning(mut file: File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(ANSWER).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes it.
fn write_table(out: &mut impl Write, checks: &[Check]) -> io::Result<()> {
    let mut of = "";
    for check in checks {
        if check.of != of {
            let gap = if of.is_empty() { "" } else { "\n" };
            of = &check.of;
            writeln!(out, "{gap}{of}{}", note(checks, of))?;
        }
        let state = word(check.state);
        writeln!(out, "  {state:<8} {:<20} {}", check.check, check.found)?;
        let there = check
            .install
            .as_deref()
            .filter(|_| check.state == State::Ok);
        if !check.remedy.is_empty() {
            writeln!(out, "  {:<8} {:<20} -> {}", "", "", check.remedy)?;
        } else if let Some(install) = there {
            writeln!(out, "  {:<8} {:<20} installed by: {install}", "", "")?;
        }
    }
    Ok(())
}

/// Whether the scenario can be run without all that a subject needs.
fn note(checks: &[Check], of: &str) -> &'static str {
    let mut own = checks.iter().filter(|check| check.of == of);
    if of == "machine" || own.clone().any(|check| check.needed) {
        ""
    } else if own.any(|check| check.optional) {
        " (left out here where a program is missing)"
    } else {
        " (not needed here)"
    }
}

fn word(state: State) -> &'static str {
    match state {
        State::Ok => "ok",
        State::Poor => "poor",
        State::Missing => "missing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::scenario::subject_file::Needs;

    fn needs(command: &str, version: &[&str]) -> Needs {
        Needs {
            command: command.into(),
            install: "apt-get install it".into(),
            version: version.iter().map(|word| (*word).to_owned()).collect(),
        }
    }

    fn look(command: &str, version: &[&str]) -> Check {
        look_for("tor", &needs(command, version), true, None)
    }

    #[test]
    fn a_program_that_is_there_tells_its_version() {
        let check = look("sh", &["sh", "-c", "echo; echo '  sh 5.2  '; echo more"]);
        assert_eq!((check.state, check.found.as_str()), (State::Ok, "sh 5.2"));
        assert_eq!(check.remedy, "");
        let check = look("sh", &["sh", "-c", "echo on stderr >&2; exit 1"]);
        assert_eq!(check.found, "on stderr");
    }

    #[test]
    fn a_program_without_a_version_is_told_by_its_path() {
        assert!(look("sh", &[]).found.ends_with("/sh"));
        assert!(look("sh", &["no-such-program-7"]).found.ends_with("/sh"));
    }

    #[test]
    fn a_program_that_is_missing_is_told_with_the_command_that_installs_it() {
        let check = look("no-such-program-7", &[]);
        assert_eq!(check.state, State::Missing);
        assert_eq!(check.remedy, "apt-get install it");
        let failure = verdict("smoke", &[check]).unwrap_err();
        assert_eq!(failure.exit_code(), std::process::ExitCode::from(1));
        let text = failure.to_string();
        assert!(
            text.contains("missing: no-such-program-7: apt-get install it"),
            "{text}"
        );
    }

    #[test]
    fn a_program_that_no_command_installs_is_told_as_such() {
        let needs = Needs {
            install: String::new(),
            ..needs("no-such-program-7", &[])
        };
        let check = look_for("tor", &needs, true, None);
        assert_eq!(check.install, None);
        let mut out = Vec::new();
        write_table(&mut out, std::slice::from_ref(&check)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("-> no command installs it"), "{text}");
        let failure = verdict("smoke", &[check]).unwrap_err().to_string();
        assert!(failure.contains("no command installs it"), "{failure}");
    }

    #[test]
    fn every_subject_that_comes_with_the_lab_is_told_with_its_install_commands_or_that_there_is_nothing_to_install()
     {
        for subject in scenario::built_in_subjects() {
            let checks = other_checks(&subject);
            let mut out = Vec::new();
            write_table(&mut out, &checks).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(
                text.starts_with(&format!("{} (not needed here)\n", subject.name)),
                "{text}"
            );
            let told = |line: &&str| {
                let parts = ["-> ", "installed by: ", "nothing is to be installed"];
                parts.iter().any(|part| line.contains(part))
            };
            assert_eq!(text.lines().filter(told).count(), checks.len(), "{text}");
            for needs in &subject.needs {
                let command = if needs.install.is_empty() {
                    NO_COMMAND
                } else {
                    &needs.install
                };
                assert!(text.contains(command), "{text}");
            }
            assert_eq!(subject.needs.is_empty(), subject.name == "native", "{text}");
        }
    }

    #[test]
    fn a_directory_or_a_plain_file_is_no_program() {
        assert_eq!(look("/tmp", &[]).state, State::Missing);
        let plain = tempfile::NamedTempFile::new().unwrap();
        let path = plain.path().to_str().unwrap();
        assert_eq!(look(path, &[]).state, State::Missing);
    }

    #[test]
    fn what_no_subject_of_the_scenario_needs_does_not_fail_it() {
        let mut check = look("no-such-program-7", &[]);
        check.needed = false;
        let good = look("sh", &[]);
        assert!(verdict("smoke", &[good.clone(), check.clone()]).is_ok());
        let mut out = Vec::new();
        write_table(&mut out, &[check]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("tor (not needed here)\n  missing"),
            "{text}"
        );
        assert!(text.ends_with("-> apt-get install it\n"), "{text}");
    }

    #[test]
    fn what_the_scenario_leaves_out_where_it_is_missing_does_not_fail_it() {
        let text = "name = \"rare\"\n[[needs]]\ncommand = \"no-such-program-7\"\ninstall = \"apt-get install it\"\n";
        let subject = SubjectFile::parse("rare.toml", text).unwrap();
        let want = |optional| Want {
            needs: subject.needs[0].clone(),
            optional,
        };
        assert!(verdict("s", &subject_checks(&subject, &[want(false)])).is_err());
        let checks = subject_checks(&subject, &[want(true)]);
        assert!(verdict("s", &checks).is_ok());
        let mut out = Vec::new();
        write_table(&mut out, &checks).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("rare (left out here where a program is missing)\n  missing"),
            "{text}"
        );
        assert!(text.ends_with("-> apt-get install it\n"), "{text}");
    }

    #[test]
    fn a_machine_that_is_poor_is_told_but_does_not_fail() {
        let poor = Check {
            of: "machine".into(),
            check: "processors".into(),
            state: State::Poor,
            needed: false,
            optional: false,
            found: "1".into(),
            remedy: "use two".into(),
            install: None,
        };
        assert!(verdict("smoke", std::slice::from_ref(&poor)).is_ok());
        assert!(
            serde_json::to_string(&poor)
                .unwrap()
                .contains("\"state\":\"poor\"")
        );
    }

    #[test]
    fn a_scenario_that_is_wrong_is_told_before_anything_is_looked_for() {
        let args = DoctorArgs {
            scenario: Some("smoek".into()),
            json: false,
        };
        let refusal = run(&args).unwrap_err().to_string();
        for part in ["reading the scenario smoek: ", "did you mean \"smoke\"?"] {
            assert!(refusal.contains(part), "{refusal}");
        }
    }
}
