//! The messages of the actor of all task-list runs.

#[derive(Debug)]
pub enum TaskListsMsg {
    Boot,
    /// Makes sure that this run has a driver.
    Drive(String),
    /// The run's driver has ended, with a message if it panicked.
    Ended(String, Option<String>),
}
