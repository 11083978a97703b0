"""The launcher's state machine: handles a failure inside the allocation if possible. Pure.

A failed launch is ended for certain: no process of it survives on any node. Its cause is diagnosed by the operator's
rules, and the training step is relaunched, on the same nodes or with spares in place of the nodes to blame. If neither
would help, or the budget is spent, the attempt ends with an outcome that names cause and suspects. Progress refills the
budget; time does not.
"""

from transom_cli.core.launcher.actions import Action as Action
from transom_cli.core.launcher.actions import CancelTopUp as CancelTopUp
from transom_cli.core.launcher.actions import CheckNodes as CheckNodes
from transom_cli.core.launcher.actions import EndLaunch as EndLaunch
from transom_cli.core.launcher.actions import FinishAttempt as FinishAttempt
from transom_cli.core.launcher.actions import Journal as Journal
from transom_cli.core.launcher.actions import JudgeHang as JudgeHang
from transom_cli.core.launcher.actions import KillRanks as KillRanks
from transom_cli.core.launcher.actions import PersistMemory as PersistMemory
from transom_cli.core.launcher.actions import ReadLogs as ReadLogs
from transom_cli.core.launcher.actions import ReplaceRanks as ReplaceRanks
from transom_cli.core.launcher.actions import RequestCheckpoint as RequestCheckpoint
from transom_cli.core.launcher.actions import RollBack as RollBack
from transom_cli.core.launcher.actions import StartLaunch as StartLaunch
from transom_cli.core.launcher.actions import SubmitTopUp as SubmitTopUp
from transom_cli.core.launcher.actions import WatchSpares as WatchSpares
from transom_cli.core.launcher.actions import WithheldOutcome as WithheldOutcome
from transom_cli.core.launcher.decide import decide as decide
from transom_cli.core.launcher.decide import next_deadline as next_deadline
from transom_cli.core.launcher.events import THIS_LAUNCHER as THIS_LAUNCHER
from transom_cli.core.launcher.events import AnomalyReported as AnomalyReported
from transom_cli.core.launcher.events import AttemptStarted as AttemptStarted
from transom_cli.core.launcher.events import CheckpointDurable as CheckpointDurable
from transom_cli.core.launcher.events import CheckpointPlanned as CheckpointPlanned
from transom_cli.core.launcher.events import Event as Event
from transom_cli.core.launcher.events import FaultsFound as FaultsFound
from transom_cli.core.launcher.events import GracePeriodOver as GracePeriodOver
from transom_cli.core.launcher.events import HangJudged as HangJudged
from transom_cli.core.launcher.events import LaunchEnded as LaunchEnded
from transom_cli.core.launcher.events import LogsRead as LogsRead
from transom_cli.core.launcher.events import MemoryPersisted as MemoryPersisted
from transom_cli.core.launcher.events import NodeReturned as NodeReturned
from transom_cli.core.launcher.events import NodesChecked as NodesChecked
from transom_cli.core.launcher.events import NodesDraining as NodesDraining
from transom_cli.core.launcher.events import NodeUnreachable as NodeUnreachable
from transom_cli.core.launcher.events import QueueSeen as QueueSeen
from transom_cli.core.launcher.events import RanksEntered as RanksEntered
from transom_cli.core.launcher.events import RanksExited as RanksExited
from transom_cli.core.launcher.events import RanksKilled as RanksKilled
from transom_cli.core.launcher.events import SlurmAway as SlurmAway
from transom_cli.core.launcher.events import SpareChecked as SpareChecked
from transom_cli.core.launcher.events import Stalled as Stalled
from transom_cli.core.launcher.events import StandbyTook as StandbyTook
from transom_cli.core.launcher.events import StartFailed as StartFailed
from transom_cli.core.launcher.events import Stepped as Stepped
from transom_cli.core.launcher.events import StopRequested as StopRequested
from transom_cli.core.launcher.events import TasksSeen as TasksSeen
from transom_cli.core.launcher.events import Tick as Tick
from transom_cli.core.launcher.events import TimeLimitNear as TimeLimitNear
from transom_cli.core.launcher.events import TopUpEnded as TopUpEnded
from transom_cli.core.launcher.events import TopUpStarted as TopUpStarted
from transom_cli.core.launcher.events import TopUpSubmitted as TopUpSubmitted
from transom_cli.core.launcher.outcome import after_attempt as after_attempt
from transom_cli.core.launcher.outcome import without_progress as without_progress
from transom_cli.core.launcher.reentry import reading as reading
from transom_cli.core.launcher.state import History as History
from transom_cli.core.launcher.state import Launch as Launch
from transom_cli.core.launcher.state import Memory as Memory
from transom_cli.core.launcher.state import Nodes as Nodes
from transom_cli.core.launcher.state import Phase as Phase
from transom_cli.core.launcher.state import Policy as Policy
from transom_cli.core.launcher.state import Reason as Reason
from transom_cli.core.launcher.state import State as State
