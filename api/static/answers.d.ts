// Answers of the REST API. Written by `python -m tests.api.answer_types`; do not edit.

export interface AttemptChange {
  trial: number;
  attempt: number;
  state: AttemptState;
  devices: string[];
  mib_per_rank: number;
  outcome: Outcome | null;
  detail: string;
}

export interface AttemptEvent {
  id: number;
  /** seconds since the epoch, UTC */
  time: number;
  kind: "attempt";
  study_id: number;
  trial_id: number;
  data: AttemptChange;
}

export type AttemptState = "STARTING" | "RUNNING" | "WITHDRAWN" | "STOPPING" | "ENDED";

export interface AttemptView {
  /** parallel degrees of the plan; empty while there is none */
  plan_short: string;
  /** ranks of the plan, one on each device; 0 while there is no plan */
  num_ranks: number;
  /** predicted peak of one rank, including extra_bytes */
  predicted_bytes: number;
  /** part of extra_bytes: tensors that the trace misses */
  bias_bytes: number;
  /** predicted peak of an evaluation; 0 where it is not known */
  evaluation_bytes: number;
  /** predicted peak of tensors, to compare with measured_bytes */
  expected_bytes: number;
  /** predicted seconds of an optimizer step of the gang alone on its host, with step_factor; null where the speed of its devices is not known */
  predicted_step_seconds: number | null;
  /** how many times as long steps of its family took as predicted; 1: nothing learned */
  step_factor: number;
  /** median seconds of a step, without the first ones, evaluations and checkpoints; null: none */
  measured_step_seconds: number | null;
  /** predicted share (0 to 1) of a step in which ranks wait for each other; null: not known */
  predicted_communication_share: number | null;
  /** measured share, of the rank that waits least; null: not measured */
  measured_communication_share: number | null;
  /** seconds since the epoch, UTC */
  created_at: number;
  started_at: number | null;
  /** number of the attempt in its trial, from 1 */
  attempt: number;
  state: AttemptState;
  outcome: Outcome | null;
  /** details of its end, such as a traceback */
  detail: string;
  /** what it did when it ran out of memory, such as `an evaluation` */
  phase: string;
  plan: Record<string, any>;
  plan_text: string;
  /** device of each rank, in rank order */
  devices: string[];
  /** why it was placed on these devices */
  placement_reason: string;
  /** MiB reserved on a device for one rank */
  mib_per_rank: number;
  /** bytes added to the traced peak */
  extra_bytes: number;
  /** largest measured peak; after running out of memory, the bytes that were held and requested */
  measured_bytes: number;
  /** steps timed so far; measured_step_seconds is their median */
  timed_steps: number;
  /** step of its last committed checkpoint; -1: none */
  checkpoint_step: number;
  ended_at: number | null;
  /** attempts with the same text here share a process (`TRIAL/ATTEMPT`, by ids); empty: none */
  pack: string;
  /** MiB of frozen weights in `mib_per_rank`, which all attempts that share a process have together */
  shared_mib: number;
  /** how busy its first rank was, in order; empty in its first minute */
  load: WatchView[];
}

export interface AuditView {
  id: number;
  /** seconds since the epoch, UTC */
  time: number;
  /** user; empty for the shared token, and where there are no users */
  actor: string;
  /** network address that the request came from */
  address: string;
  action: string;
  study_id: number | null;
  detail: Record<string, any>;
}

export interface AxisView {
  /** flat name, such as `lr` or `layers.0.width` */
  name: string;
  /** values in their order; null: numbers from `low` to `high` */
  choices: any[] | null;
  low: number;
  high: number;
  /** whether the axis is logarithmic */
  log: boolean;
  /** for each trial its number, of choices the index; null: it does not have the parameter */
  place: (number | null)[];
}

export interface Best {
  /** number of the trial in the study */
  trial: number;
  /** its objective */
  value: number | null;
  params: Record<string, any>;
  /** the plan in words */
  plan: string;
}

export interface CandidatesView {
  /** trials with a value; more than `number` if thinned */
  num_trials: number;
  /** every parameter that may be asked for, at most 500 */
  names: string[];
  number: number[];
  state: TrialState[];
  value: number[];
  /** share of the trials with a value, also of those that are not sent, that are better, 0 to 1 */
  rank: number[];
  axes: AxisView[];
  /** id of an event that this answer includes: pass it to /v1/events?after= to follow on */
  last_event_id: number;
}

export interface ChangeView {
  name: string;
  /** value of the parent; null also if it does not have the parameter */
  before: any;
  after: any;
}

export interface ClusterEvent {
  id: number;
  /** seconds since the epoch, UTC */
  time: number;
  kind: "cluster";
  study_id: null;
  trial_id: null;
  data: ClusterState;
}

export interface ClusterState {
  status: string;
  detail: string;
  devices: Record<string, any>[];
  speed?: string;
  controller?: Record<string, any>;
}

export interface ClusterView {
  /** `starting` until a live controller has reported */
  status: string;
  /** why the cluster is not ready, why GPUs offer nothing, or that it is a rehearsal; or empty */
  detail: string;
  /** what is wrong with the data directory, such as a full disk; empty if nothing is */
  data_directory: string;
  /** how well the speed of the devices is known, from which step times are predicted */
  speed: string;
  /** whether the controller has renewed its lease in time */
  controller_alive: boolean;
  /** seconds since the controller last reported; null: it never has */
  controller_silent_seconds: number | null;
  /** null: none has reported yet */
  controller: ControllerView | null;
  devices: DeviceView[];
  gangs: GangView[];
  /** the first 200 waiting trials */
  waiting: WaitingView[];
  /** number of all waiting trials */
  num_waiting: number;
  /** id of an event that this answer includes: pass it to /v1/events?after= to follow on */
  last_event_id: number;
}

export interface ContainedView {
  /** what it could not do */
  doing: string;
  error: string;
  /** the study that it concerns; null: none alone */
  study_id: number | null;
  /** seconds since the epoch, UTC */
  first_at: number;
  /** seconds since the epoch, UTC */
  last_at: number;
  /** how often it has happened */
  times: number;
}

export interface ControllerView {
  host: string;
  /** process id on that host */
  pid: number;
  /** when it began to lead */
  since: number;
  /** the last ten different errors, also of earlier ones, the newest first */
  errors: ContainedView[];
}

export interface CurveView {
  trial_id: number;
  /** number of the trial in the study */
  number: number;
  metric: string;
  step: number[];
  value: number[];
  /** first steps of later attempts, which went on from a checkpoint */
  resumed: number[];
}

export type DeliveryState = "WAITING" | "DELIVERED" | "GIVEN_UP";

export interface DeliveryView {
  id: number;
  /** `webhook-id` of every attempt */
  webhook_id: string;
  kind: string;
  study_id: number | null;
  /** the e-mail address, or the URL without its path, which may be a secret */
  to: string;
  text: string;
  state: DeliveryState;
  num_attempts: number;
  /** what came of the last attempt */
  answer: string;
  /** seconds since the epoch, UTC */
  created_at: number;
  /** when it is tried next; null once it has ended */
  next_at: number | null;
  ended_at: number | null;
}

export interface DescendantView {
  number: number;
  state: TrialState;
  /** BRANCH is a copy, which continues to train; others began with the parent's weights */
  origin: Origin;
  value: number | null;
  /** step of its last evaluation */
  step: number;
  /** trial that it continues from; null: it began anew */
  parent_number: number | null;
  /** step of the parent at which it began */
  parent_step: number | null;
  changes: ChangeView[];
}

export interface DeviceView {
  id: string;
  node: string;
  /** index of the device on its node, from 0 */
  index: number;
  /** kind of the GPU, as in `scamp estimate --device`, or its product, or `virtual` */
  kind: string;
  /** MiB that it offers to all ranks together */
  capacity_mib: number;
  reserved_mib: number;
  /** capacity_mib − reserved_mib, or 0 if other processes have taken more since */
  free_mib: number;
  /** why no gang is placed on it now; empty if it is open */
  closed: string;
  gangs: GangView[];
}

export interface DraftView {
  name: string;
  workload: string;
  project: string;
  parameters: ParameterView[];
}

export interface EnqueuedView {
  /** number of the trial of each candidate */
  numbers: number[];
}

export type EventView = StudyEvent | TrialEvent | AttemptEvent | MetricsEvent | ClusterEvent;

export type Evidence = "traced" | "at least" | "states" | "units";

export interface FileView {
  /** its name; part of its address in this API */
  name: string;
  num_bytes: number;
  /** seconds since the epoch, UTC */
  written_at: number;
}

export interface ForecastView {
  /** seconds from now until all of it is done */
  makespan_seconds: number;
  /** devices × hours that it takes from now on */
  device_hours: number;
  device_hours_by_kind: Record<string, number>;
  /** trials that train from now on, also those that are yet to come */
  num_trials: number;
  /** trials that would not fit on these devices */
  num_never: number;
}

export interface FrontTrial {
  /** number of the trial in the study */
  trial: number;
  /** value of each objective, in the order of `spec.objectives` */
  values: number[];
  params: Record<string, any>;
  /** the plan in words */
  plan: string;
}

export interface FrontView {
  /** metric of each objective */
  metrics: string[];
  /** `maximize` or `minimize`, of each objective */
  directions: string[];
  /** trials with a value for each objective; more than `number` if thinned */
  num_trials: number;
  number: number[];
  state: TrialState[];
  /** for each trial the value of each objective */
  values: number[][];
  /** whether no other completed trial is better in one objective and worse in none */
  on_front: boolean[];
  /** id of an event that this answer includes: pass it to /v1/events?after= to follow on */
  last_event_id: number;
}

export interface GangView {
  /** trial id/attempt, after `hidden-` for one of a project that you may not read */
  key: string;
  /** 0 if you may not read it */
  study_id: number;
  study_name: string;
  trial_id: number;
  /** number of the trial in its study */
  number: number;
  attempt: number;
  state: AttemptState;
  /** the plan in words */
  plan_text: string;
  /** device of each rank, in rank order */
  devices: string[];
  /** MiB reserved on a device for one rank, the largest of all */
  mib_per_rank: number;
  /** MiB reserved for each rank, in rank order */
  mibs: number[];
  /** why it was placed on these devices */
  placement_reason: string;
  /** seconds since the epoch, UTC */
  created_at: number;
  /** how busy its first rank was in the last measured minute, from 0 to 1; null: not measured */
  busy_share: number | null;
  /** for how long it is idle by SCAMP_IDLE_PCT and SCAMP_IDLE_MINUTES; 0: it is not */
  idle_seconds: number;
}

export interface Health {
  status: string;
}

export interface HistoryView {
  /** trials that have begun or ended; more than `number` if thinned */
  num_trials: number;
  number: number[];
  id: number[];
  state: TrialState[];
  step: number[];
  /** null: the trial has reported none, or one that is not finite */
  value: (number | null)[];
  /** numbers of the trials whose curves are worth drawing: running, best, newest; at most 200 */
  leading: number[];
  /** id of an event that this answer includes: pass it to /v1/events?after= to follow on */
  last_event_id: number;
}

export interface ImportanceView {
  name: string;
  /** share of the importance of all parameters, 0 to 1 */
  share: number;
}

export interface ImportancesView {
  /** trials that have completed or were stopped early */
  num_ended: number;
  /** trials that they are computed from: those with a value, at most 2000 */
  num_trials: number;
  /** whether fewer than 20 trials are too few to trust the shares */
  is_rough: boolean;
  /** the most important first, at most 40 */
  items: ImportanceView[];
}

export interface LearnedMemory {
  family: string;
  /** how the model was spread over ranks, such as fsdp2+recompute */
  layout: string;
  /** bytes reserved beyond trace and margin */
  extra_bytes: number;
  /** part of extra_bytes: tensors that the trace misses, by the median */
  bias_bytes: number;
  /** trials that the correction was learned from */
  num_trials: number;
  /** number of them that ran out of memory */
  num_out_of_memory: number;
  /** how often finished trials have halved what failures ask for */
  num_halvings: number;
  /** studies whose trials needed more than their trace */
  studies: number[];
}

export interface LineageView {
  /** trials with a parent or children; more than `items` if thinned */
  num_trials: number;
  /** the best trials and all ancestors of each */
  items: DescendantView[];
}

export interface LogLineView {
  /** ascending; pass the last one as `after` for later lines */
  id: number;
  attempt: number;
  rank: number;
  /** seconds since the epoch, UTC */
  time: number;
  text: string;
}

export interface MeView {
  /** empty with the shared token, and where there are no users */
  name: string;
  /** of the whole service */
  is_admin: boolean;
  /** may change users and read the audit log */
  may_manage: boolean;
  /** role in each project */
  roles: Record<string, Role>;
  /** what this token may do at most */
  most: Role;
  /** the only project of this token; null: all of the user's */
  project: string | null;
}

export interface MemberView {
  user: string;
  project: string;
  role: Role;
}

export interface MessageView {
  /** stage of the pipeline, from 0 */
  sender: number;
  /** stage of the pipeline, from 0 */
  receiver: number;
  micro_batch: number;
  /** since the step began, in `unit` */
  start: number;
  /** since the step began, in `unit` */
  end: number;
}

export interface MetricView {
  step: number;
  attempt: number;
  values: Record<string, number | null>;
  /** seconds since the epoch, UTC */
  time: number;
}

export interface MetricsEvent {
  id: number;
  /** seconds since the epoch, UTC */
  time: number;
  kind: "metrics";
  study_id: number;
  trial_id: number;
  data: NewMetrics;
}

export interface NewMetrics {
  trial: number;
  step: number;
  values: Record<string, number | null>;
}

export interface NewTokenView {
  secret: string;
  token: TokenView;
}

export interface NewUserView {
  user: UserView;
  secret: string;
}

export interface OptionView {
  plan: Record<string, any>;
  plan_text: string;
  /** ranks of the plan, one on each device; 0 while there is no plan */
  num_ranks: number;
  chosen: boolean;
  /** whether one rank's reservation is within what devices offer */
  fits: boolean;
  /** MiB to reserve on a device for one rank */
  reserved_mib: number;
  /** MiB that each of its devices offers */
  offered_mib: number;
  /** whether reserved_mib is a lower bound */
  at_least: boolean;
  /** whether its memory is that of a trace, and not added up from the costs of blocks */
  traced: boolean;
  /** how reserved_mib is known: by traces; by a trace of one micro-batch, which needs too much; from model states alone, which are too large; or added up from the costs of units */
  evidence: Evidence;
  /** seconds of a step, from the costs of blocks, if every rank has a core for itself, with what was learned; null where the devices' speed is not known */
  seconds: number | null;
  /** predicted share of the step, 0 to 1, in which ranks wait for each other */
  communication_share: number | null;
  /** devices × seconds of a step, over that of the chosen plan */
  relative_device_seconds: number | null;
}

export interface OrderView {
  /** their numbers in the study; only the first ones with a `limit` */
  number: number[];
  /** trials that there are, also those behind the limit */
  num_trials: number;
}

export type Origin = "SEARCH" | "ENQUEUED" | "BRANCH" | "REPEAT" | "EXTERNAL";

export interface OutOfMemory {
  /** number of attempts that ran out of memory */
  attempts: number;
  /** the worst attempt needed at least this many percent more than predicted */
  least_excess_pct: number | null;
}

export type Outcome = "DONE" | "STOPPED" | "OUT_OF_MEMORY" | "DIVERGED" | "DEPENDS_ON_DIVISION" | "RESUMES_DIFFERENTLY" | "ERROR" | "FAULT" | "STALLED" | "LOST";

export interface Page_AuditView_ {
  items: AuditView[];
  /** `after` of the next page, which `Link` also has; null on the last page */
  next?: number | null;
}

export interface Page_CurveView_ {
  items: CurveView[];
  /** `after` of the next page, which `Link` also has; null on the last page */
  next?: number | null;
}

export interface Page_DeliveryView_ {
  items: DeliveryView[];
  /** `after` of the next page, which `Link` also has; null on the last page */
  next?: number | null;
}

export interface Page_FileView_ {
  items: FileView[];
  /** `after` of the next page, which `Link` also has; null on the last page */
  next?: number | null;
}

export interface Page_LogLineView_ {
  items: LogLineView[];
  /** `after` of the next page, which `Link` also has; null on the last page */
  next?: number | null;
}

export interface Page_MetricView_ {
  items: MetricView[];
  /** `after` of the next page, which `Link` also has; null on the last page */
  next?: number | null;
}

export interface Page_PeaksView_ {
  items: PeaksView[];
  /** `after` of the next page, which `Link` also has; null on the last page */
  next?: number | null;
}

export interface Page_StudyView_ {
  items: StudyView[];
  /** `after` of the next page, which `Link` also has; null on the last page */
  next?: number | null;
}

export interface Page_TrialView_ {
  items: TrialView[];
  /** `after` of the next page, which `Link` also has; null on the last page */
  next?: number | null;
}

export interface ParameterView {
  name: string;
  /** other: blocks, and those with a condition or a prior */
  kind: "float" | "int" | "choice" | "ordinal" | "other";
  low: string;
  high: string;
  /** empty: none */
  step: string;
  log: boolean;
  /** the values of a list, with commas between them */
  values: string;
}

export interface PartView {
  name: string;
  first: any;
  last: any;
  num_candidates: number;
  num_fitting: number;
}

export interface PassView {
  kind: "forward" | "backward" | "update";
  /** number of the micro-batch, from 0; null for the update */
  micro_batch: number | null;
  /** since the step began, in `unit` */
  start: number;
  /** since the step began, in `unit` */
  end: number;
  /** from then to `end` the rank communicates: it sends the result, and waits for ranks of its own stage as far as computation does not hide it. `end` if nothing is known of the links */
  communicating_from: number;
}

export interface PeakView {
  attempt: number;
  outcome: Outcome | null;
  /** traced tensors, and those that the trace is known to miss */
  predicted_bytes: number;
  /** exact peak, or a lower bound of it if `lower_bound` */
  measured_bytes: number;
  /** whether the attempt ran out of memory */
  lower_bound: boolean;
  /** MiB reserved on a device for one rank */
  reserved_mib: number;
  /** null where the devices' speed is not known */
  predicted_step_seconds: number | null;
  /** null: no step was timed */
  measured_step_seconds: number | null;
}

export interface PeaksView {
  trial_id: number;
  number: number;
  /** state of the trial */
  state: TrialState;
  attempts: PeakView[];
}

export interface Problem {
  type?: string;
  title: string;
  status: number;
  detail: string;
}

export interface ProvenanceView {
  /** that has submitted it */
  command?: string | null;
  /** of git, of the folder of its files */
  commit?: string | null;
  /** whether tracked files differed from the commit */
  is_changed?: boolean | null;
  /** versions of Python and packages of the service */
  packages?: Record<string, string>;
}

export interface RanksView {
  num_ranks: number;
  num_candidates: number;
  /** median of the MiB that are reserved for a rank */
  reserved_mib: number;
}

export interface Readiness {
  /** `ready` or `not ready` */
  status: string;
  /** `ok`, or why nothing can be stored in it */
  database: string;
  /** `ok`, or why it cannot be used */
  data_directory: string;
  /** `ok`, or why no controller is at work */
  controller: string;
}

export interface RetriedView {
  /** their numbers; trials that have not ended are left out */
  numbers: number[];
}

export type Role = "viewer" | "editor" | "admin";

export interface RowView {
  /** stage of the pipeline, from 0 */
  stage: number;
  ranks: number[];
  /** in the order of time */
  passes: PassView[];
  /** (start, end) of each time in which the ranks wait for other stages, in `unit` */
  waits: [number, number][];
  /** (time in `unit`, bytes that each of the ranks holds from then on) */
  memory: [number, number][];
  /** predicted peak of one rank, with what was learned */
  peak_bytes: number;
}

export interface ScreeningView {
  num_candidates: number;
  num_fitting: number;
  /** candidates that the workload refuses */
  num_refused: number;
  /** for the first of them; empty: none is */
  why_refused: string;
  num_devices: number;
  /** MiB that the largest device offers */
  largest_mib: number;
  ranks: RanksView[];
  parts: PartView[];
}

export interface StudyChange {
  id: number;
  name: string;
  state: StudyState;
}

export interface StudyDetail {
  id: number;
  name: string;
  state: StudyState;
  /** the state in words */
  state_text: string;
  /** the study has completed, but none of its trials did */
  no_success: boolean;
  /** why the study failed or was stopped; empty otherwise */
  reason: string;
  /** what was doubtful when it was submitted: parameters that may not be read, say */
  warnings: string[];
  /** the StudySpec with all defaults filled in */
  spec: Record<string, any>;
  /** whether a user's own files were submitted with it */
  has_files: boolean;
  /** number of trials in each state that has any */
  trials: Record<string, number>;
  /** null with several objectives, see `front` */
  best: Best | null;
  /** seconds × devices that its attempts have held so far */
  device_seconds: number;
  /** user who submitted it; empty if there were no users */
  owner: string;
  project: string;
  tags: string[];
  note: string;
  /** whether it is listed only on demand */
  archived: boolean;
  /** seconds since the epoch, UTC */
  created_at: number;
  finished_at: number | null;
  summary: Summary;
  /** id of an event that this answer includes: pass it to /v1/events?after= to follow on */
  last_event_id: number;
}

export interface StudyEvent {
  id: number;
  /** seconds since the epoch, UTC */
  time: number;
  kind: "study";
  study_id: number;
  trial_id: null;
  data: StudyChange;
}

export type StudyState = "RUNNING" | "PAUSED" | "STOPPING" | "COMPLETED" | "STOPPED" | "FAILED" | "EXTERNAL" | "DELETED";

export interface StudyView {
  id: number;
  name: string;
  state: StudyState;
  /** the state in words */
  state_text: string;
  /** the study has completed, but none of its trials did */
  no_success: boolean;
  /** why the study failed or was stopped; empty otherwise */
  reason: string;
  /** what was doubtful when it was submitted: parameters that may not be read, say */
  warnings: string[];
  /** the StudySpec with all defaults filled in */
  spec: Record<string, any>;
  /** whether a user's own files were submitted with it */
  has_files: boolean;
  /** number of trials in each state that has any */
  trials: Record<string, number>;
  /** null with several objectives, see `front` */
  best: Best | null;
  /** seconds × devices that its attempts have held so far */
  device_seconds: number;
  /** user who submitted it; empty if there were no users */
  owner: string;
  project: string;
  tags: string[];
  note: string;
  /** whether it is listed only on demand */
  archived: boolean;
  /** seconds since the epoch, UTC */
  created_at: number;
  finished_at: number | null;
}

export interface Summary {
  study: number;
  name: string;
  state: StudyState;
  /** the state in words */
  state_text: string;
  /** the study has completed, but none of its trials did */
  no_success: boolean;
  /** number of trials in each state that has any */
  trials: Record<string, number>;
  /** null with several objectives, see `front` */
  best: Best | null;
  /** number of trials by the number of ranks they ran on */
  degrees: Record<string, number>;
  /** largest number of gangs of the study on one device at once */
  colocated: number;
  /** trials that completed or were pruned after running out of memory */
  healed: number;
  /** trials that ran with memory learned from earlier trials and did not run out of memory */
  spared: number;
  /** whether samples differ in size, so that peaks are predicted for the largest of them */
  is_uneven: boolean;
  /** `median` and `max` of |predicted − measured| / measured for the peak of tensors of one rank, over the last attempt of each trial that was measured exactly; null if samples differ in size */
  prediction_error_pct: Record<string, number | null>;
  /** the same for predicted seconds of a step, over the last timed attempt of each trial */
  step_error_pct: Record<string, number | null>;
  out_of_memory: OutOfMemory;
  /** seconds × devices that its attempts have held so far */
  device_seconds: number;
  /** those in which ranks waited for messages, by the measured share of a step */
  communication_seconds: number;
  /** how busy the devices were, from 0 to 1, as far as that was measured: in each whole minute of an attempt */
  busy_share: number | null;
  /** seconds × MiB that its attempts have had reserved so far */
  reserved_mib_seconds: number;
  /** seconds × MiB that their ranks had at the measured peak, 0 for attempts that have not measured it yet */
  used_mib_seconds: number;
  /** from its creation to its end, or until now */
  wall_seconds: number;
  /** completed trials on the Pareto front (while none has completed, of those that run), the best of the first objective first; at most 100, evenly chosen. Empty with one objective */
  front: FrontTrial[];
  /** with `budget.terminator`, how much better than the best found any candidate may be, with high probability; null while it is not known */
  regret_bound: number | null;
  /** metrics of the best trial's last evaluation, or of its best where that counts; null: not finite */
  best_metrics: Record<string, number | null>;
  /** memory corrections of the largest families of the study, for each layout that it has run with */
  learned: LearnedMemory[];
}

export interface TimelineView {
  /** `s`: seconds; `FLOP` where the speed of the devices is not known */
  unit: "s" | "FLOP";
  /** length of the step, in `unit`; in seconds it is `predicted_step_seconds` of the plan */
  makespan: number;
  num_micro_batches: number;
  /** cores of a host that all ranks share, if there are more ranks than cores; null otherwise */
  cores: number | null;
  /** share of the step, 0 to 1, in which ranks wait for other stages */
  bubble_share: number;
  /** share of the step, 0 to 1, in which ranks communicate; null: the links are not known */
  communication_share: number | null;
  /** bytes that each device offers; null: not known */
  offered_bytes: number | null;
  rows: RowView[];
  /** in the order of time */
  messages: MessageView[];
}

export interface TokenView {
  id: number;
  user: string;
  name: string;
  /** what it may do at most */
  role: Role;
  /** null: all projects of the user */
  project: string | null;
  /** seconds since the epoch, UTC */
  created_at: number;
  /** null: never */
  expires_at: number | null;
  /** at most a minute old; null: never used */
  last_used_at: number | null;
  revoked_at: number | null;
}

export interface TrialChange {
  id: number;
  number: number;
  state: TrialState;
  attempt: number;
  step: number;
  value: number | null;
  reason: string;
  parent_number: number | null;
}

export interface TrialDetail {
  /** parallel degrees of the plan; empty while there is none */
  plan_short: string;
  /** ranks of the plan, one on each device; 0 while there is no plan */
  num_ranks: number;
  /** predicted peak of one rank, including extra_bytes */
  predicted_bytes: number;
  /** part of extra_bytes: tensors that the trace misses */
  bias_bytes: number;
  /** predicted peak of an evaluation; 0 where it is not known */
  evaluation_bytes: number;
  /** predicted peak of tensors, to compare with measured_bytes */
  expected_bytes: number;
  /** predicted seconds of an optimizer step of the gang alone on its host, with step_factor; null where the speed of its devices is not known */
  predicted_step_seconds: number | null;
  /** how many times as long steps of its family took as predicted; 1: nothing learned */
  step_factor: number;
  /** median seconds of a step, without the first ones, evaluations and checkpoints; null: none */
  measured_step_seconds: number | null;
  /** predicted share (0 to 1) of a step in which ranks wait for each other; null: not known */
  predicted_communication_share: number | null;
  /** measured share, of the rank that waits least; null: not measured */
  measured_communication_share: number | null;
  /** seconds since the epoch, UTC */
  created_at: number;
  started_at: number | null;
  id: number;
  study_id: number;
  /** number in the study, from 0; part of its address in this API */
  number: number;
  state: TrialState;
  /** who created it: the study's sampler (SEARCH), a user (ENQUEUED), a stopping rule, as a copy of another one (BRANCH), a study with `repeats`, for another seed (REPEAT), or another program, which also runs it (EXTERNAL) */
  origin: Origin;
  /** number of the trial with whose weights it began, or that it repeats; null: neither */
  parent_number: number | null;
  /** step of `value` where trials count by their best report; null: `step` */
  best_step: number | null;
  /** step of the checkpoint of that trial; null: it began anew */
  parent_step: number | null;
  /** number of attempts so far */
  attempt: number;
  params: Record<string, any>;
  /** reason of its state: why it waits, was placed there, failed or is infeasible */
  reason: string;
  /** what it waits for: its first plan or a new one, the predictions of all candidates, devices, the end of another trial of its study (MAX_CONCURRENT), the quota of its project, its next try after a fault of the host (RETRY), the trials that repeat it, or a stopping rule, which has not judged it yet where it has paused (COMPARISON), or has (PROMOTION). null: it does not wait */
  waits_for: WaitsFor | null;
  /** why it was chosen among several proposals, with their scores by `search.filter`; or empty */
  proposal_reason: string;
  /** null while there is no plan */
  plan: Record<string, any> | null;
  /** the plan in words; empty while there is none */
  plan_text: string;
  /** why this plan was chosen */
  plan_reason: string;
  /** samples per optimizer step over all ranks; 0 while there is no plan */
  batch: number;
  /** bytes added because earlier trials of its family, or itself, needed more than traced */
  extra_bytes: number;
  /** extra bytes learned for its family and layout when it was planned, whether used or not */
  learned_bytes: number;
  /** trials of one family share memory corrections; empty until it is planned */
  family: string;
  /** MiB reserved on a device for one rank */
  reserved_mib: number;
  /** largest measured peak of one rank's tensors, a lower bound if it ran out of memory; 0: none */
  measured_bytes: number;
  /** floating point operations of a training step for one sample, forward and backward */
  flops_per_sample: number | null;
  /** number of the model's parameters; 0: not known */
  num_params: number;
  /** share (0 to 1) of the time of its newest attempt in which the training checked itself; null: no step was timed */
  check_share: number | null;
  /** of its gradient, in samples, as AdaScale estimates it; null: not known */
  noise_scale: number | null;
  /** attempts that ran out of memory */
  num_oom: number;
  /** whether it completed or was pruned after running out of memory */
  healed: boolean;
  /** attempts that were lost, for example with their node */
  num_lost: number;
  /** attempts that its own code ended with an error, since a user last retried it */
  num_failures: number;
  /** attempts in a row that a fault of the host, such as a full disk, ended without a checkpoint; they do not count against the trial until they are too many */
  num_faults: number;
  /** optimizer step of its last evaluation */
  step: number;
  /** objective at `step`; null while unknown or not finite */
  value: number | null;
  /** value of each of the study's objectives, in the order of `spec.objectives`; null while unknown or not finite. With one objective it is `value` alone */
  values: (number | null)[];
  /** `values` of its trainings with several seeds, its own first, in a study with `repeats`; those above are then their means. Empty: it was trained once */
  repeats: ((number | null)[])[];
  /** sample standard deviation of each of `values` over these seeds; empty: it was trained once */
  deviations: (number | null)[];
  /** all metrics of its last evaluation, or of its best where trials count by that one; null: not finite */
  metrics: Record<string, number | null>;
  finished_at: number | null;
  /** whether a user has paused it */
  paused: boolean;
  /** waiting trials of a higher one start before others of their study */
  priority: number;
  attempts: AttemptView[];
  /** numbers of the other trials that share the process of its last attempt, or have shared it */
  shared_with: number[];
  options: OptionView[];
  /** checkpoints that are only on the service's host although object storage should have them, since when and why; empty: none */
  unstored: string;
  /** id of an event that this answer includes: pass it to /v1/events?after= to follow on */
  last_event_id: number;
}

export interface TrialEvent {
  id: number;
  /** seconds since the epoch, UTC */
  time: number;
  kind: "trial";
  study_id: number;
  trial_id: number;
  data: TrialChange;
}

export type TrialState = "WAITING" | "QUEUED" | "RUNNING" | "PAUSED" | "COMPLETED" | "PRUNED" | "FAILED" | "INFEASIBLE" | "CANCELLED" | "DELETED";

export interface TrialView {
  /** parallel degrees of the plan; empty while there is none */
  plan_short: string;
  /** ranks of the plan, one on each device; 0 while there is no plan */
  num_ranks: number;
  /** predicted peak of one rank, including extra_bytes */
  predicted_bytes: number;
  /** part of extra_bytes: tensors that the trace misses */
  bias_bytes: number;
  /** predicted peak of an evaluation; 0 where it is not known */
  evaluation_bytes: number;
  /** predicted peak of tensors, to compare with measured_bytes */
  expected_bytes: number;
  /** predicted seconds of an optimizer step of the gang alone on its host, with step_factor; null where the speed of its devices is not known */
  predicted_step_seconds: number | null;
  /** how many times as long steps of its family took as predicted; 1: nothing learned */
  step_factor: number;
  /** median seconds of a step, without the first ones, evaluations and checkpoints; null: none */
  measured_step_seconds: number | null;
  /** predicted share (0 to 1) of a step in which ranks wait for each other; null: not known */
  predicted_communication_share: number | null;
  /** measured share, of the rank that waits least; null: not measured */
  measured_communication_share: number | null;
  /** seconds since the epoch, UTC */
  created_at: number;
  started_at: number | null;
  id: number;
  study_id: number;
  /** number in the study, from 0; part of its address in this API */
  number: number;
  state: TrialState;
  /** who created it: the study's sampler (SEARCH), a user (ENQUEUED), a stopping rule, as a copy of another one (BRANCH), a study with `repeats`, for another seed (REPEAT), or another program, which also runs it (EXTERNAL) */
  origin: Origin;
  /** number of the trial with whose weights it began, or that it repeats; null: neither */
  parent_number: number | null;
  /** step of `value` where trials count by their best report; null: `step` */
  best_step: number | null;
  /** step of the checkpoint of that trial; null: it began anew */
  parent_step: number | null;
  /** number of attempts so far */
  attempt: number;
  params: Record<string, any>;
  /** reason of its state: why it waits, was placed there, failed or is infeasible */
  reason: string;
  /** what it waits for: its first plan or a new one, the predictions of all candidates, devices, the end of another trial of its study (MAX_CONCURRENT), the quota of its project, its next try after a fault of the host (RETRY), the trials that repeat it, or a stopping rule, which has not judged it yet where it has paused (COMPARISON), or has (PROMOTION). null: it does not wait */
  waits_for: WaitsFor | null;
  /** why it was chosen among several proposals, with their scores by `search.filter`; or empty */
  proposal_reason: string;
  /** null while there is no plan */
  plan: Record<string, any> | null;
  /** the plan in words; empty while there is none */
  plan_text: string;
  /** why this plan was chosen */
  plan_reason: string;
  /** samples per optimizer step over all ranks; 0 while there is no plan */
  batch: number;
  /** bytes added because earlier trials of its family, or itself, needed more than traced */
  extra_bytes: number;
  /** extra bytes learned for its family and layout when it was planned, whether used or not */
  learned_bytes: number;
  /** trials of one family share memory corrections; empty until it is planned */
  family: string;
  /** MiB reserved on a device for one rank */
  reserved_mib: number;
  /** largest measured peak of one rank's tensors, a lower bound if it ran out of memory; 0: none */
  measured_bytes: number;
  /** floating point operations of a training step for one sample, forward and backward */
  flops_per_sample: number | null;
  /** number of the model's parameters; 0: not known */
  num_params: number;
  /** share (0 to 1) of the time of its newest attempt in which the training checked itself; null: no step was timed */
  check_share: number | null;
  /** of its gradient, in samples, as AdaScale estimates it; null: not known */
  noise_scale: number | null;
  /** attempts that ran out of memory */
  num_oom: number;
  /** whether it completed or was pruned after running out of memory */
  healed: boolean;
  /** attempts that were lost, for example with their node */
  num_lost: number;
  /** attempts that its own code ended with an error, since a user last retried it */
  num_failures: number;
  /** attempts in a row that a fault of the host, such as a full disk, ended without a checkpoint; they do not count against the trial until they are too many */
  num_faults: number;
  /** optimizer step of its last evaluation */
  step: number;
  /** objective at `step`; null while unknown or not finite */
  value: number | null;
  /** value of each of the study's objectives, in the order of `spec.objectives`; null while unknown or not finite. With one objective it is `value` alone */
  values: (number | null)[];
  /** `values` of its trainings with several seeds, its own first, in a study with `repeats`; those above are then their means. Empty: it was trained once */
  repeats: ((number | null)[])[];
  /** sample standard deviation of each of `values` over these seeds; empty: it was trained once */
  deviations: (number | null)[];
  /** all metrics of its last evaluation, or of its best where trials count by that one; null: not finite */
  metrics: Record<string, number | null>;
  finished_at: number | null;
  /** whether a user has paused it */
  paused: boolean;
  /** waiting trials of a higher one start before others of their study */
  priority: number;
}

export interface UseView {
  /** first day of the period (UTC) */
  period: string;
  project: string;
  /** user; empty where there were no users */
  owner: string;
  /** devices × hours */
  device_hours: number;
  /** MiB × hours that were reserved */
  mib_hours: number;
  /** how busy the devices were, from 0 to 1, in the hours that were measured; null: none were */
  busy_share: number | null;
}

export type UserKind = "person" | "service";

export interface UserView {
  /** most devices at once, over all trials */
  devices?: number | null;
  /** most trials that run at once */
  trials?: number | null;
  /** most devices × hours a month */
  device_hours?: number | null;
  /** largest priority of studies */
  max_priority?: number | null;
  name: string;
  kind: UserKind;
  /** of the whole service */
  is_admin: boolean;
  email: string;
  /** role in each project */
  roles: Record<string, Role>;
  /** seconds since the epoch, UTC */
  created_at: number;
  disabled_at: number | null;
}

export interface WaitingView {
  study_id: number;
  study_name: string;
  trial_id: number;
  /** number of the trial in its study */
  number: number;
  state: TrialState;
  /** null while there is no plan */
  plan: Record<string, any> | null;
  /** the plan in words; empty while there is none */
  plan_text: string;
  /** ranks of the plan, one on each device; 0 while there is no plan */
  num_ranks: number;
  /** MiB to reserve for one rank; 0 while there is no plan */
  reserved_mib: number;
  /** why it waits */
  reason: string;
  /** what it lacks: `plan`, `verdict` (of the stopping rule), `retry` (after a fault of the host), `busy`, `fragmented`, `reserved`, `own reservation`, `too large`, `no devices`, `quota`, `limit` (of trials of its study) or `predictions` (of all candidates); empty if it is about to start */
  blocked: string;
  /** seconds until it starts, by a simulation of the queue; null: not known */
  starts_in_seconds: number | null;
}

export type WaitsFor = "PLAN" | "NEW_PLAN" | "PREDICTIONS" | "RESUME" | "DEVICES" | "MAX_CONCURRENT" | "QUOTA" | "RETRY" | "COMPARISON" | "PROMOTION" | "REPEATS";

export interface WatchView {
  /** seconds since the epoch, UTC */
  ended: number;
  seconds: number;
  /** share (0 to 1) of the time in which its GPU computed, or its process on a CPU */
  busy_share: number;
  /** memory that it had at the end: of torch's allocator on a GPU, of the process on a CPU */
  mib: number;
}

export interface WhatIfView {
  /** devices that are added, by kind */
  added: Record<string, number>;
  now: ForecastView;
  then: ForecastView;
  /** trials that are left out: nobody knows yet how long they take */
  num_unknown: number;
  /** trials that are left out because there are too many */
  num_more: number;
}
