//! Handles the gate's requests about adapters.

use crate::conversation::adapter::view;
use crate::daemon::context::Daemon;
use crate::dispatch::error::{fault, internal};
use crate::ports::adapter::{Act, AdaptersMsg};
use jiff::Timestamp;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, WireError};
use tokio::sync::oneshot;

pub fn list(daemon: &Daemon) -> Reply {
    let all = daemon.adapters.all();
    Reply::Adapters { adapters: view::adapters(&daemon.snapshot(), &all, Timestamp::now()) }
}

/// Restarts, enables or disables an adapter. Returns once that is done.
///
/// # Errors
/// `E_NOT_FOUND`, `E_BAD_INPUT`, or the error of the configuration.
pub async fn act(daemon: &Daemon, name: &str, act: &str, by: &str) -> Result<Reply, WireError> {
    let act = match act {
        "restart" => Act::Restart,
        "enable" => Act::Enable,
        "disable" => Act::Disable,
        other => {
            let message = format!("`{other}` is not `restart`, `enable` or `disable`");
            return Err(fault(ErrorCode::BadInput, &message, ""));
        }
    };
    let (reply, done) = oneshot::channel();
    let message = AdaptersMsg::Act { name: name.into(), act, by: by.into(), reply };
    if !daemon.ports.adapters.cast(message) {
        return Err(fault(ErrorCode::Busy, "the adapters are being restarted", "try again in 5 s"));
    }
    done.await.map_err(|_| internal("the adapters were restarted meanwhile"))??;
    let mut all = daemon.adapters.all();
    all.retain(|known, _| known == name);
    Ok(Reply::Adapters { adapters: view::adapters(&daemon.snapshot(), &all, Timestamp::now()) })
}
