//! The relay's end of stdin and stdout. It knows when a result was written, because only then the
//! agent can have it.

use muleteer_protocol::v1::ToolTaken;
use rmcp::model::{JsonRpcMessage, RequestId};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use std::collections::HashMap;
use std::fs::File as StdFile;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::fs::File;
use tokio::sync::mpsc;

/// The longest message of a client, in bytes.
const LONGEST: usize = 4 << 20;

/// The results that are confirmed to the daemon once they are written.
#[derive(Debug)]
pub(super) struct Written {
    expected: Mutex<HashMap<RequestId, ToolTaken>>,
    confirm: Mutex<Option<mpsc::Sender<ToolTaken>>>,
    ended: AtomicBool,
}

impl Written {
    pub fn new(confirm: mpsc::Sender<ToolTaken>) -> Self {
        Self {
            expected: Mutex::default(),
            confirm: Mutex::new(Some(confirm)),
            ended: AtomicBool::new(false),
        }
    }

    /// Notes the confirmation that follows when the result of a request was written.
    pub fn expect(&self, request: RequestId, taken: ToolTaken) {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        expected.insert(request, taken);
    }

    /// Whether stdin has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Says that no result is written any more.
    pub fn close(&self) {
        self.confirm.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    async fn wrote(&self, request: &RequestId) {
        let taken = self.expected.lock().unwrap_or_else(PoisonError::into_inner).remove(request);
        let confirm = self.confirm.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let (Some(taken), Some(confirm)) = (taken, confirm) {
            // The receiver ends with the process.
            let _ = confirm.send(taken).await;
        }
    }
}

/// Stdin and stdout.
pub(super) struct Wire {
    inner: AsyncRwTransport<RoleServer, File, File>,
    written: Arc<Written>,
}

impl Wire {
    /// # Errors
    /// The system has no descriptor left.
    pub fn stdio(written: Arc<Written>) -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        let file = |descriptor| File::from_std(StdFile::from(descriptor));
        let inner = AsyncRwTransport::new_server(file(input), file(output));
        Ok(Self { inner: inner.with_max_line_length(LONGEST), written })
    }
}

impl Transport<RoleServer> for Wire {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let request = match &item {
            JsonRpcMessage::Response(response) => Some(response.id.clone()),
            JsonRpcMessage::Request(_)
            | JsonRpcMessage::Notification(_)
            | JsonRpcMessage::Error(_) => None,
        };
        let (sending, written) = (self.inner.send(item), self.written.clone());
        async move {
            sending.await?;
            if let Some(request) = request {
                written.wrote(&request).await;
            }
            Ok(())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let received = self.inner.receive().await;
        if received.is_none() {
            self.written.ended.store(true, Ordering::SeqCst);
        }
        received
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.inner.close().await
    }
}
