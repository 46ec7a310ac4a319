"""Every error Cutline raises. Imports nothing; each class pickles.

Classes are cut by what the reader of the error would do next::

    CutlineError
    ├── Misuse                       the program asks for something Cutline cannot mean: change the program
    │   ├── BlockingInHandler        a handler waits for another participant: use `await` or `then`
    │   ├── UnknownMethod            (AttributeError) the participant's class has no such method
    │   ├── UnknownParticipant       (KeyError) nobody of that name
    │   ├── DuplicateName            (ValueError) two participants of one name
    │   ├── DuplicateLabel           (ValueError) two savepoints of one label
    │   ├── OutsideHandler           `me`, ... called where no handler runs
    │   ├── StateChangedBeforeAwait  an async handler changed state and then awaited
    │   ├── NotReplayable            an async handler awaited something that cannot be journaled
    │   ├── ReplayMismatch           a re-run handler asked for something else than the first time
    │   ├── AnswerRefused            a person's answer that does not count
    │   │   ├── QuestionUnknown      (KeyError) no such question is open
    │   │   ├── QuestionAnswered     it has an answer already
    │   │   ├── AnswerTooLate        its deadline has passed
    │   │   └── AnswerUnfit          (ValueError) it is not what the question's schema wants
    │   ├── RefusedOption            (ValueError) an option that Cutline must not pass on
    │   └── MissingPackage           (ImportError) an extra of cutline that is not installed
    ├── CaptureError
    │   ├── CannotCapture            state or a message that cannot go into an image, with its path
    │   ├── ConcurrentMutation       a thread wrote to a participant's state while it was captured
    │   └── CannotRestore            an image that cannot become an object again
    │       ├── ClassMissing         a class that the image names and the program lacks
    │       ├── ClassNotAllowed      a class that the image names and `allow=` does not
    │       └── SchemaMismatch       what the image holds is not what the program's class is made of
    ├── StorageError
    │   ├── NotAStore                (FileNotFoundError) no store there
    │   ├── NewerFormat              written by a newer Cutline
    │   ├── StoreNotWritable         (PermissionError)
    │   ├── StoreFull                no space left
    │   ├── StoreForbidden           (PermissionError) it does not accept our credentials
    │   ├── StoreUnreachable         (ConnectionError) its server cannot be reached, or the connection broke
    │   ├── StoreNotShared           a node of the cluster does not see the storage folder
    │   ├── BlobExists               (FileExistsError) conditional create lost
    │   ├── BlobNotFound             (FileNotFoundError)
    │   ├── Corrupt                  bytes that do not have the hash they must have
    │   │   └── NotAuthentic         bytes that the store's key does not vouch for
    │   ├── ForeignStore             the key of the store is not here
    │   ├── CheckpointNotFound       (KeyError)
    │   ├── BelowHorizon             the newest whole checkpoint is older than what has left the system
    │   ├── StoreInUse               another live system owns it
    │   ├── Fenced                   a newer owner took over: stop writing
    │   └── FateDecided              the checkpoint was decided before
    ├── ConnectionRefused            (ConnectionError)
    │   ├── WrongToken               the secret of the run does not match
    │   ├── PortInUse                the address is taken
    │   ├── DriverConnected          another program is the driver, or is about to be
    │   └── NotRunning               no live system behind that storage folder
    └── SystemFault
        ├── SpawnFailed              a participant did not come up
        ├── InputRefused             the driver has no room for another input: send it again later
        ├── Overloaded               participants send each other more than they take, beyond memory and disk
        ├── ParticipantFailed        a handler raised where nobody hears it
        ├── ParticipantLeft          it has left the system and handles nothing more
        ├── SystemHalted             the system stopped handling messages; the cuts stay usable
        ├── SystemStopped            the system was stopped
        ├── CheckpointAborted        a checkpoint that was asked for did not commit
        ├── CutRefused               a cut that does not prove itself (our bug, or damaged channels)
        ├── AnswerForgotten          the answer of an old Ref is no longer kept
        ├── DeadlinePassed           (TimeoutError) nobody has answered a question in time
        ├── EffectUnknown            whether an effect has happened is for a person to find out
        ├── OutputRefused            a sink does not take what was emitted, or is not as it was left
        ├── EffectsBlocked           a fork asks for an effect that its origin has not done
        ├── ResultNotStored          an effect has happened, and its result cannot be stored
        ├── RemoteError              a handler's exception that cannot be pickled, as text
        └── RolledBack               the system went back behind something this session has seen
"""

from __future__ import annotations

from typing import Any

__all__ = (
    "CutlineError",
    "Misuse",
    "BlockingInHandler",
    "UnknownMethod",
    "UnknownParticipant",
    "DuplicateName",
    "DuplicateLabel",
    "OutsideHandler",
    "StateChangedBeforeAwait",
    "NotReplayable",
    "ReplayMismatch",
    "AnswerRefused",
    "QuestionUnknown",
    "QuestionAnswered",
    "AnswerTooLate",
    "AnswerUnfit",
    "RefusedOption",
    "MissingPackage",
    "CaptureError",
    "CannotCapture",
    "ConcurrentMutation",
    "CannotRestore",
    "ClassMissing",
    "ClassNotAllowed",
    "SchemaMismatch",
    "StorageError",
    "NotAStore",
    "NewerFormat",
    "StoreNotWritable",
    "StoreFull",
    "StoreForbidden",
    "StoreUnreachable",
    "StoreNotShared",
    "BlobExists",
    "BlobNotFound",
    "Corrupt",
    "NotAuthentic",
    "ForeignStore",
    "CheckpointNotFound",
    "BelowHorizon",
    "StoreInUse",
    "Fenced",
    "FateDecided",
    "ConnectionRefused",
    "WrongToken",
    "PortInUse",
    "DriverConnected",
    "NotRunning",
    "SystemFault",
    "SpawnFailed",
    "InputRefused",
    "Overloaded",
    "ParticipantFailed",
    "ParticipantLeft",
    "SystemHalted",
    "SystemStopped",
    "CheckpointAborted",
    "CutRefused",
    "AnswerForgotten",
    "DeadlinePassed",
    "EffectUnknown",
    "OutputRefused",
    "EffectsBlocked",
    "ResultNotStored",
    "RemoteError",
    "RolledBack",
)


class CutlineError(Exception):
    """Root of all. ``facts`` names what is involved (participant, checkpoint, path, ...), ready for logs."""

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        # KeyError would print the repr of its argument; the message is a sentence and stays one.
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.message, self.facts)


def _again(kind: type[CutlineError], message: str, facts: dict[str, Any]) -> CutlineError:
    return kind(message, **facts)


class Misuse(CutlineError):
    """The program asks for something Cutline cannot mean."""


class BlockingInHandler(Misuse):
    """A handler blocks on another participant; it would hold up every cut, or never finish."""


class UnknownMethod(Misuse, AttributeError):
    """The participant's class has no such method."""


class UnknownParticipant(Misuse, KeyError):
    """No participant has that name."""


class DuplicateName(Misuse, ValueError):
    """Two participants of one name."""


class DuplicateLabel(Misuse, ValueError):
    """Two savepoints of one label."""


class OutsideHandler(Misuse):
    """Something that only means something inside a handler."""


class StateChangedBeforeAwait(Misuse):
    """An async handler changed its participant's state and then awaited; a re-run would change it twice."""


class NotReplayable(Misuse):
    """An async handler awaited something whose outcome cannot be journaled."""


class ReplayMismatch(Misuse):
    """A re-run async handler made another request than the journal holds at that place."""


class AnswerRefused(Misuse):
    """A person's answer that does not count; ``facts["question"]`` is the id it was given for."""


class QuestionUnknown(AnswerRefused, KeyError):
    """No question of that id is open: mistyped, of another system or lineage, or undone."""


class QuestionAnswered(AnswerRefused):
    """The question has an answer already; the first one counts."""


class AnswerTooLate(AnswerRefused):
    """The question's deadline has passed."""


class AnswerUnfit(AnswerRefused, ValueError):
    """The answer is not what the question's schema wants; ``facts["fault"]`` says where."""


class RefusedOption(Misuse, ValueError):
    """An option that would break order or recovery."""


class MissingPackage(Misuse, ImportError):
    """What was asked for needs a package that is not installed; the message says what to install."""


class CaptureError(CutlineError):
    """Turning objects into images and back."""


class CannotCapture(CaptureError):
    """A value that cannot go into an image or a message; ``facts["path"]`` says where it is."""


class ConcurrentMutation(CaptureError):
    """State was written to, outside a handler, while it was captured; ``facts["path"]`` says which."""


class CannotRestore(CaptureError):
    """An image that cannot become an object again."""


class ClassMissing(CannotRestore):
    """A class that the image names and this program lacks."""


class ClassNotAllowed(CannotRestore):
    """A class or function that something stored or sent names, and that ``allow=`` does not."""


class SchemaMismatch(CannotRestore):
    """What was saved is not what this program's class is made of; ``facts["what"]`` says which part of it."""


class StorageError(CutlineError):
    """Durable bytes."""


class NotAStore(StorageError, FileNotFoundError):
    """There is no store at that place."""


class NewerFormat(StorageError):
    """The store was written by a newer Cutline."""


class StoreNotWritable(StorageError, PermissionError):
    """The store cannot be written."""


class StoreFull(StorageError):
    """No space left for the store."""


class StoreForbidden(StorageError, PermissionError):
    """The store's server does not accept our credentials."""


class StoreUnreachable(StorageError, ConnectionError):
    """The store's server cannot be reached, or the connection to it broke; ``facts["unchanged"]`` is False
    where a change may have happened all the same."""


class StoreNotShared(StorageError):
    """A node of the cluster does not see the storage folder that the driver sees."""


class BlobExists(StorageError, FileExistsError):
    """A conditional create found the key taken."""


class BlobNotFound(StorageError, FileNotFoundError):
    """No blob under that key."""


class Corrupt(StorageError):
    """Stored bytes do not have the hash they must have."""


class NotAuthentic(Corrupt):
    """Stored bytes are whole, and were written by somebody who does not have the store's key."""


class ForeignStore(StorageError):
    """The key of a store, or of an export, is not here: who wrote it is unknown, and it cannot be written."""


class CheckpointNotFound(StorageError, KeyError):
    """No such checkpoint or label."""


class BelowHorizon(StorageError):
    """Going back to the newest whole checkpoint would undo what has left the system for good."""


class StoreInUse(StorageError):
    """Another live system owns the store."""


class Fenced(StorageError):
    """A newer owner holds the lease; what this one writes no longer counts."""


class FateDecided(StorageError):
    """The checkpoint's fate was decided before."""


class ConnectionRefused(CutlineError, ConnectionError):
    """A connection that did not come about."""


class WrongToken(ConnectionRefused):
    """The secret of the run does not match."""


class PortInUse(ConnectionRefused):
    """The address to listen on is taken."""


class DriverConnected(ConnectionRefused):
    """Another program is the system's driver, or is about to be."""


class NotRunning(ConnectionRefused):
    """No live system behind that storage folder."""


class SystemFault(CutlineError):
    """Something happened to the running system."""


class SpawnFailed(SystemFault):
    """A participant did not come up."""


class InputRefused(SystemFault):
    """There is no room for another input, or for another idempotency key: it was not taken."""


class Overloaded(SystemFault):
    """Participants send more than others take; ``facts["cycle"]`` names those that wait in a circle."""


class ParticipantFailed(SystemFault):
    """A handler raised where nobody hears it."""


class ParticipantLeft(SystemFault):
    """A participant that has left the system was asked; it handles nothing more."""


class SystemHalted(SystemFault):
    """The system stopped handling messages; its checkpoints stay usable."""


class SystemStopped(SystemFault):
    """The system was stopped."""


class CheckpointAborted(SystemFault):
    """A checkpoint that was asked for did not commit."""


class CutRefused(SystemFault):
    """A cut that does not prove itself was not committed."""


class AnswerForgotten(SystemFault):
    """The answer of an old Ref is no longer kept."""


class DeadlinePassed(SystemFault, TimeoutError):
    """Nobody has answered a question to a person before its deadline."""


class EffectUnknown(SystemFault):
    """Effects whose process was lost during the call: a person must say whether they have happened."""


class OutputRefused(SystemFault):
    """A sink does not take what was emitted, or is not as it was left. What waits for it is kept."""


class EffectsBlocked(SystemFault):
    """An effect of a fork that is told what became of its origin's, which has not done this one."""


class ResultNotStored(SystemFault):
    """An effect has happened, and what it returned cannot be stored."""


class RemoteError(SystemFault):
    """A handler's exception that does not pickle, as text."""


class RolledBack(SystemFault):
    """The system went back behind something that this session has seen."""
