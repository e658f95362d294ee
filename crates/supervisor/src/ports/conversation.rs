//! The messages of the actor of all threads.

#[derive(Debug)]
pub enum ConversationsMsg {
    /// Makes sure that each busy thread has a driver.
    Look,
    /// The thread's driver has ended, with a message if it failed.
    Ended(String, Option<String>),
}
