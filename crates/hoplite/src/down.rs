//! `hoplite down`: everything that `up` did is undone, whether its process lives or not.

use clap::Args;
use serde_json::{Value, json};

use crate::{
    config::client,
    portal, say,
    say::Failure,
    up::{
        DEVICE_LOCK, Lock, Place, Refusal, block,
        control::{self, Command},
        driver::{self, System},
        plan::{self, Wanted},
        session_runtime,
    },
};

/// `hoplite down`
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The interface.
    #[arg(long, value_name = "NAME", default_value = "hoplite0")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Runs the command.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let opened = block::open(&options.place.run_dir);
    let path = control::path(&options.place.run_dir, &options.name);
    let reply = control::ask(&path, Command::Down)
        .map_err(|error| Failure::file("asking the process that listens at", &path, &error))?;
    if let Some(failed) = reply.as_ref().and_then(|reply| reply.get("failed")) {
        let why = failed
            .as_str()
            .unwrap_or("it failed without a word")
            .to_owned();
        tracing::warn!("{why}");
    }
    // What a process did not undo, or one that is dead.
    clear(options)?;
    opened.map_err(|error| {
        Failure::file(
            "saying that it shall stay open in",
            &options.place.run_dir,
            &error,
        )
    })?;
    if json {
        say::json(&json!({"state": "down", "name": options.name}))
    } else {
        say::answer(said(&options.name, reply.as_ref()))
    }
}

fn said(name: &str, reply: Option<&Value>) -> String {
    match reply {
        Some(_) => format!("{name} is down: traffic flows past us again"),
        None => format!("{name} is down: nobody was there; what was left behind is removed"),
    }
}

fn clear(options: &Options) -> Result<(), Failure> {
    if !driver::may_set_up() {
        let remedy = "run it as root, or give it CAP_NET_ADMIN";
        return Err(Failure::new(
            "setting up the network",
            "Operation not permitted",
            remedy,
        ));
    }
    let _lock = lock(options)?;
    let wanted = Wanted::from_config(&client::Config::default(), true);
    session_runtime(async {
        let system = System::new(&options.place.run_dir, &options.name, &wanted.addresses)?;
        let mut complaints = plan::clear(system, plan::remains()).await;
        complaints.extend(portal::end().await.err());
        complaints
            .into_iter()
            .next()
            .map_or(Ok(()), |it| Err(it.into()))
    })
}

/// The process that has just answered may not have ended quite. None, where the disk has no room for it: then nobody has it.
fn lock(options: &Options) -> Result<Option<Lock>, Failure> {
    let mut tries = 50;
    loop {
        match Lock::take(&options.place.run_dir, DEVICE_LOCK) {
            Ok(lock) => return Ok(Some(lock)),
            Err(Refusal::Full(_)) => return Ok(None),
            Err(Refusal::Failed(complaint)) => return Err(complaint.into()),
            Err(Refusal::Held(pid)) if tries == 0 => {
                let why =
                    format!("process {pid} does not end, or has an interface of another name");
                return Err(Failure::new(
                    "taking the device down",
                    why,
                    "give its name with --name, or end it",
                ));
            }
            Err(Refusal::Held(_)) => tries -= 1,
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
