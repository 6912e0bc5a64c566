//! `hoplite status`: whether traffic flows through the relays, is blocked, or goes past them.
//! For users and scripts.

use serde_json::Value;

use crate::{
    down::Options,
    errors::Failure,
    say,
    up::{
        control::{self, Command},
        driver::System,
        firewall_count, session_runtime,
        status::{self, State, Status},
    },
};

/// Runs the command.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let path = control::path(&options.place.run_dir, &options.name);
    let reply = control::ask(&path, Command::Status)
        .map_err(|error| Failure::file("asking the process that listens at", &path, &error))?;
    let mut value = match reply {
        Some(value) => value,
        None => status::flat(&without_process(options)?),
    };
    if let (Some(all), Some(blocked)) = (value.as_object_mut(), firewall_count()) {
        let blocked = serde_json::to_value(blocked).unwrap_or_default();
        all.insert("blocked".into(), blocked);
    }
    match json {
        true => say::json(&value),
        false => lines(value).iter().try_for_each(say::answer),
    }
}

fn without_process(options: &Options) -> Result<Status, Failure> {
    let mut blocked = false;
    session_runtime(async {
        let system = System::new(&options.place.run_dir, &options.name, &[])?;
        blocked = system.is_blocked().await;
        Ok(())
    })?;
    Ok(Status {
        state: if blocked { State::Blocked } else { State::Down },
        name: options.name.clone(),
        ..Status::default()
    })
}

fn lines(value: Value) -> Vec<String> {
    let process = serde_json::from_value(value.clone()).ok();
    match serde_json::from_value::<Status>(value) {
        Ok(mut status) => {
            status.process = process;
            status.lines()
        }
        Err(error) => vec![format!("an answer that another version gave: {error}")],
    }
}
