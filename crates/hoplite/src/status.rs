//! `hoplite status`: whether traffic flows through the relays, is blocked, or goes past them; and how a client does.

use serde_json::Value;

use crate::{
    client::status::ClientStatus,
    down::Options,
    say,
    say::Failure,
    up::{
        block::seen,
        control::{self, Command, Status},
        driver::System,
        firewall_count, session_runtime,
    },
};

/// Runs the command.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let path = control::path(&options.place.run_dir, &options.name);
    let reply = control::ask(&path, Command::Status)
        .map_err(|error| Failure::file("asking the process that listens at", &path, &error))?;
    if let (Some(value), Some(client)) = (&reply, reply.as_ref().and_then(ClientStatus::read)) {
        // It has taken nothing of the machine that could be looked at.
        return if json {
            say::json(value)
        } else {
            client.lines().iter().try_for_each(say::answer)
        };
    }
    let seen = look(options)?;
    let mut value = match reply {
        Some(value) => value,
        None => control::flat(&seen),
    };
    if let (Some(all), Value::Object(seen)) = (value.as_object_mut(), control::flat(&seen)) {
        let what = ["firewall", "blocked"];
        all.extend(
            seen.into_iter()
                .filter(|(key, _)| what.contains(&key.as_str())),
        );
    }
    if json {
        say::json(&value)
    } else {
        lines(value).iter().try_for_each(say::answer)
    }
}

/// What anybody can see of it who may look.
fn look(options: &Options) -> Result<Status, Failure> {
    let mut status = Status::default();
    session_runtime(async {
        let system = System::new(&options.place.run_dir, &options.name, &[])?;
        status = seen(&system, &options.name).await;
        Ok(())
    })?;
    status.blocked = firewall_count();
    Ok(status)
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
