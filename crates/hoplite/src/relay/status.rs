//! What a relay says of itself to its operator: over a socket in a directory that it was given, as `hoplite up` does, and to nobody on the network.
//! `hoplite relay status` asks. Sums only: no address, no name and no token of a user.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::Args;
use hoplite_relay::{
    Handle, Observer,
    config::{Config, Role},
    status::{Lately, NOTED_EVERY, Rates, Standing, Use},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    directory::now,
    process,
    say::{self, Failure, Table},
    up::control::{self, Asked, Command, Socket, plain},
};

/// What the socket and the lock in the directory are called by.
const NAME: &str = "relay";

/// Limits that are shown to people: the nearest.
const SHOWN: usize = 6;

/// `hoplite relay status`
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The directory that the relay was given by its --run-dir.
    #[arg(long, value_name = "DIR", default_value = "/run/hoplite-relay")]
    run_dir: PathBuf,
}

/// Answers whoever asks how the relay does.
#[derive(Debug)]
pub(super) struct Teller {
    socket: Socket,
    observer: Observer,
    rates: Rates,
    began: Began,
    told: watch::Receiver<Told>,
}

/// What does not change while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Began {
    /// Always [`NAME`]: by this scripts tell it from `hoplite up` and `hoplite client`.
    state: String,
    pid: u32,
    version: String,
    /// Its name in its file.
    name: String,
    /// When it began, in seconds since 1970.
    since: u64,
    roles: Vec<String>,
    listen: Vec<String>,
}

/// What reloads change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) certificate: Certificate,
    /// The last one, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reload: Option<Reload>,
}

/// What it shows in TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Certificate {
    pub(super) pin: String,
    /// In seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<u64>,
}

/// How a reload went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reload {
    /// When, in seconds since 1970.
    pub(super) at: u64,
    /// Why nothing was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
    /// Keys of the file that have changed since the relay began, and wait until it is started again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) waiting: Vec<String>,
}

/// All that it says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct RelayStatus {
    #[serde(flatten)]
    began: Began,
    #[serde(flatten)]
    standing: Standing,
    lately: Lately,
    /// Who was turned away since it began, by cause.
    refusals: BTreeMap<String, u64>,
    #[serde(flatten)]
    told: Told,
}

impl Teller {
    /// For a relay with this configuration, in `run_dir` if there is one.
    pub(super) fn listen(
        run_dir: Option<&Path>,
        config: &Config,
        handle: &Handle,
        told: watch::Receiver<Told>,
    ) -> Result<Self, Failure> {
        let roles = config.roles.iter().map(|role| match role {
            Role::Ingress => "ingress",
            Role::Egress => "egress",
        });
        Ok(Self {
            socket: Socket::listen(run_dir, NAME, "starting the relay")?,
            observer: handle.observer(),
            rates: Rates::default(),
            began: Began {
                state: NAME.to_owned(),
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                name: config.name.clone(),
                since: now(),
                roles: roles.map(str::to_owned).collect(),
                listen: handle.addresses().iter().map(ToString::to_string).collect(),
            },
            told,
        })
    }

    /// Answers, also while the relay drains; never ends.
    pub(super) async fn run(mut self) {
        if !self.socket.is_wanted() {
            return std::future::pending().await;
        }
        let mut due = interval(NOTED_EVERY);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                now = due.tick() => self.rates.note(now, self.observer.counted()),
                asked = self.socket.asked() => self.answer(asked),
            }
        }
    }

    fn answer(&self, asked: Asked) {
        let value = match asked.command {
            Command::Status => json!(self.status()),
            Command::Down | Command::Leave => {
                json!({"failed": "a relay ends by a signal: there is nothing to undo"})
            }
        };
        // Who has gone away meanwhile does not wait for it.
        asked.answer.send(value).unwrap_or_default();
    }

    fn status(&self) -> RelayStatus {
        let counted = self.observer.counted();
        let lately = self.rates.lately(Instant::now(), &counted);
        let mut standing = self.observer.standing();
        let moved = lately.to_target_bps + lately.to_client_bps + lately.circuits_bps;
        let bandwidth = Some(self.observer.bandwidth()).filter(|most| *most > 0);
        let others = [
            bandwidth.map(|most| ("limits.bandwidth", whole(moved), most)),
            process::open_files().map(|(used, most)| ("LimitNOFILE", used, most)),
        ];
        let others = others.into_iter().flatten().map(|(limit, used, most)| Use {
            limit: limit.to_owned(),
            used,
            most,
        });
        standing.limits.extend(others);
        RelayStatus {
            began: self.began.clone(),
            standing,
            lately,
            refusals: counted.refusals,
            told: self.told.borrow().clone(),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float is cut to the range of the integer, and no rate is negative"
)]
fn whole(rate: f64) -> u64 {
    rate.round() as u64
}

/// Runs the command.
pub(super) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let path = control::path(&options.run_dir, NAME);
    let doing = "asking the relay that listens at";
    let reply = control::ask(&path, Command::Status)
        .map_err(|error| Failure::file(doing, &path, &error))?;
    let remedy =
        "start the relay with --run-dir, and give this command the directory that it was given";
    let doing = format!("{doing} {}", path.display());
    let Some(value) = reply else {
        return Err(Failure::new(doing, "nobody is there", remedy));
    };
    if value.get("state").is_none_or(|state| state != NAME) {
        return Err(Failure::new(doing, "whoever answers is no relay", remedy));
    }
    if json {
        return say::json(&value);
    }
    lines(value, now()).iter().try_for_each(say::answer)
}

fn lines(value: Value, now: u64) -> Vec<String> {
    match serde_json::from_value::<RelayStatus>(value) {
        Ok(status) => status.lines(now),
        Err(error) => vec![format!("an answer that another version gave: {error}")],
    }
}

impl RelayStatus {
    /// For people.
    fn lines(&self, now: u64) -> Vec<String> {
        let mut lines = vec![
            self.first_line(now),
            self.open_line(),
            pace(&self.lately),
            self.told.certificate.line(now),
        ];
        lines.extend(self.told.reload.as_ref().map(|reload| reload.line(now)));
        let kernel = self.standing.kernel_forwarding.as_ref();
        lines.extend(kernel.map(|how| format!("forwarding in the kernel: {how}")));
        let lines = lines.iter().map(|line| plain(line));
        let tables = [self.limits_table(), self.refusals_table()];
        let tables = tables.into_iter().flatten();
        lines.chain(tables).collect()
    }

    fn first_line(&self, now: u64) -> String {
        let Began {
            name,
            roles,
            pid,
            version,
            since,
            ..
        } = &self.began;
        let does = if self.standing.draining {
            "drains: it takes nothing new and ends when what is open has ended; it began"
        } else {
            "serves, since"
        };
        let ago = span(now.saturating_sub(*since));
        let roles = roles.join(" and ");
        let name = if name.is_empty() { "a relay" } else { name };
        format!("{name} ({roles}) {does} {ago} ago (process {pid}, version {version})")
    }

    fn open_line(&self) -> String {
        let open = self.standing.open.iter();
        let open = open.filter(|(_, count)| **count > 0);
        let open: Vec<_> = open
            .map(|(kind, count)| format!("{count} {}", kind.replace('_', " ")))
            .collect();
        let users = format!("{} users with something open", self.standing.users);
        let all: Vec<_> = std::iter::once(users).chain(open).collect();
        format!("now: {}", all.join(", "))
    }

    fn limits_table(&self) -> Option<String> {
        let share = |of: &Use| of.used as f64 / of.most.max(1) as f64;
        let mut limits: Vec<_> = self.standing.limits.iter().collect();
        limits.sort_by(|one, other| share(other).total_cmp(&share(one)));
        let mut table = Table::new(&["limit", "used", "most", "%"]);
        for of in limits.iter().take(SHOWN) {
            table.row(vec![
                plain(&of.limit),
                of.used.to_string(),
                of.most.to_string(),
                format!("{:.1}", 100.0 * share(of)),
            ]);
        }
        (!limits.is_empty()).then(|| table.render())
    }

    fn refusals_table(&self) -> Option<String> {
        let mut table = Table::new(&["turned away", "since it began", "lately"]);
        for (cause, count) in &self.refusals {
            let lately = self.lately.refusals.get(cause).copied().unwrap_or(0);
            table.row(vec![plain(cause), count.to_string(), lately.to_string()]);
        }
        (!self.refusals.is_empty()).then(|| table.render())
    }
}

impl Certificate {
    fn line(&self, now: u64) -> String {
        let until = match self.expires {
            Some(at) if at <= now => format!("it ended {} ago: renew it", span(now - at)),
            Some(at) => format!("it ends in {}", span(at - now)),
            None => "it has no end that can be read".to_owned(),
        };
        format!("certificate: {until}; pin {}", self.pin)
    }
}

impl Reload {
    fn line(&self, now: u64) -> String {
        let ago = span(now.saturating_sub(self.at));
        match (&self.failure, self.waiting.as_slice()) {
            (Some(failure), _) => {
                format!("last reload: {ago} ago, and nothing was taken: {failure}")
            }
            (None, []) => format!("last reload: {ago} ago, and all was taken"),
            (None, waiting) => format!(
                "last reload: {ago} ago; until it is started again this waits: {}",
                waiting.join(", ")
            ),
        }
    }
}

fn pace(lately: &Lately) -> String {
    if lately.seconds <= 0.0 {
        return "lately: it has only begun".to_owned();
    }
    format!(
        "in the last {:.0} s: {} to targets, {} to users, {} over circuits; {:.1} requests and {:.1} connections a second",
        lately.seconds,
        bits(lately.to_target_bps),
        bits(lately.to_client_bps),
        bits(lately.circuits_bps),
        lately.requests_per_second,
        lately.connections_per_second,
    )
}

fn bits(per_second: f64) -> String {
    match per_second {
        few if few < 1e3 => format!("{few:.0} bit/s"),
        some if some < 1e6 => format!("{:.1} kbit/s", some / 1e3),
        many if many < 1e9 => format!("{:.1} Mbit/s", many / 1e6),
        most => format!("{:.2} Gbit/s", most / 1e9),
    }
}

/// Its two largest units.
fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn status() -> RelayStatus {
        let used = |limit: &str, used, most| Use {
            limit: limit.to_owned(),
            used,
            most,
        };
        RelayStatus {
            began: Began {
                state: NAME.to_owned(),
                pid: 7,
                version: "1.2.3".into(),
                name: "birch".into(),
                since: NOW - 90_000,
                roles: vec!["ingress".into(), "egress".into()],
                listen: vec!["[::]:443".into()],
            },
            standing: Standing {
                draining: false,
                users: 3,
                open: BTreeMap::from([("tunnels_tcp".into(), 5), ("tunnels_udp".into(), 0)]),
                limits: vec![
                    used("limits.waiting", 1, 100),
                    used("limits.requests", 90, 100),
                ],
                kernel_forwarding: Some("eth0 (driver)".into()),
            },
            lately: Lately {
                seconds: 60.0,
                to_client_bps: 12_340_000.0,
                refusals: BTreeMap::from([("limit: requests".into(), 2)]),
                ..Lately::default()
            },
            refusals: BTreeMap::from([("limit: requests".into(), 11), ("policy".into(), 4)]),
            told: Told {
                certificate: Certificate {
                    pin: "sha256:x".into(),
                    expires: Some(NOW + 864_000),
                },
                reload: Some(Reload {
                    at: NOW - 61,
                    failure: None,
                    waiting: vec!["limits.shards".into()],
                }),
            },
        }
    }

    #[test]
    fn people_are_told_all_that_scripts_are_told_and_the_nearest_limit_first() {
        let value = json!(status());
        assert_eq!(
            value["open"]["tunnels_tcp"], 5,
            "one flat object, as scripts read it"
        );
        let text = lines(value, NOW).join("\n");
        for part in [
            "birch (ingress and egress) serves, since 1 d 1 h ago (process 7, version 1.2.3)",
            "now: 3 users with something open, 5 tunnels tcp\n",
            "12.3 Mbit/s to users",
            "certificate: it ends in 10 d 0 h; pin sha256:x",
            "forwarding in the kernel: eth0 (driver)",
            "last reload: 1 min 1 s ago; until it is started again this waits: limits.shards",
            "limits.requests    90   100  90.0\nlimits.waiting      1   100   1.0",
            "limit: requests              11       2\npolicy                        4       0",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn a_drain_a_wrong_file_and_a_certificate_that_has_ended_are_told() {
        let mut status = status();
        status.standing.draining = true;
        status.told.certificate.expires = Some(NOW - 7200);
        status.told.reload = Some(Reload {
            at: NOW,
            failure: Some("relay.toml:3:1: no such key".into()),
            waiting: Vec::new(),
        });
        let text = status.lines(NOW).join("\n");
        for part in [
            "drains: it takes nothing new",
            "it ended 2 h 0 min ago: renew it",
            "0 s ago, and nothing was taken: relay.toml:3:1: no such key",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn what_an_older_relay_does_not_say_is_no_mistake_and_nonsense_is_told() {
        let mut value = json!(status());
        let all = value.as_object_mut().expect("an object");
        all.remove("reload");
        all.insert("more".into(), json!(1));
        assert!(lines(value, NOW)[0].starts_with("birch"));
        assert!(lines(json!({"state": "relay"}), NOW)[0].contains("another version"));
    }
}
