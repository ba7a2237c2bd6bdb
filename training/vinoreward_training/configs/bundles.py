"""Options of the commands that make and check bundles: capture to train-vae, doctor, demo."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from vinoreward.images import MAX_VIEWS
from vinoreward_training.configs.task import RUNS_CODE, Arguments, Count, Seed, Share, Task

Side = Annotated[int, Ge(16), Le(10_000)]
"""Height or width of an image."""

Int8 = Literal["auto", "on", "off"]


@dataclass(frozen=True, kw_only=True)
class CaptureConfig(Task):
    """Write labelled images of successes, near misses and traps.

    The result is an image folder (``success/``, ``failure/``) with a table, ``metadata.csv``.

    Examples:
        vinoreward capture --out data/hover --frames 6000
        vinoreward capture --resume --out data/hover --frames 20000
        vinoreward capture --out data/mine --env my_package:MyEnv-v0 --truth at_goal
        vinoreward capture --out data/mine --env my_package:MyEnv-v0 --image-source obs:front \\
            --image-size 96 128 --env-kwargs max_episode_steps 100
        vinoreward capture --out data/mine --env my_package:MyEnv-v0 --image-source obs:front \\
            obs:wrist
        vinoreward capture --from-video recordings --labels times.csv --out data/mine
        vinoreward capture --from-lerobot recordings/pick --camera observation.images.front \\
            --out data/pick
    """

    FIRST: ClassVar[tuple[str, ...]] = (
        "out", "env", "truth", "frames", "image_source", "image_size", "policy", "env_kwargs",
        "from_video", "labels", "from_lerobot", "seed", "resume",
    )  # fmt: skip

    out: Path = Path("data/hover")
    """Folder to write."""
    env: Annotated[str, RUNS_CODE] = "PandaHoverRandom-v0"
    """Gymnasium id. In PandaHover and environments derived from its class, the capture places arm
    and object directly; in others it acts at random."""
    frames: Annotated[int, Ge(2)] = 6000
    """Number of images."""
    seed: Annotated[int, Ge(0)] = 0
    """Frame i depends only on the seed and i; in other environments, episode i does."""
    resume: bool = False
    """Continue the capture in --out with its recorded configuration, or add --frames to it."""
    trust_run: bool = False
    """Import the package of an environment that only the run names, as in package:Id-v0. This runs
    its code. Without this option, you are asked."""
    stack: Annotated[int, Ge(1), Le(MAX_VIEWS)] = 1
    """Images of each camera in an image: of its last steps, for a task that a single image does
    not show."""
    image_size: tuple[Side, Side] | None = None
    """HEIGHT WIDTH of an image. PandaHover draws it so (default: 96 128). Others are resized by
    PIL, as the bundle does too (default: longer side at most 160)."""
    policy: Annotated[str | None, RUNS_CODE] = None
    """Who plays: a zip of Stable-Baselines3 (only plain data is read of it; one trained with
    VecNormalize needs a function, see docs/datasets.md), a folder of vinoreward train or actors, or
    a function of the observation that gives the action, FILE.py:FUNCTION or
    PACKAGE.MODULE:FUNCTION, whose code is run. Default: at random."""
    mix: dict[str, float] = field(default_factory=dict)
    """With --policy, shares of the episodes, which are played at random, by the policy, or by the
    policy with random steps; default: random 1 policy 1 noisy 2."""
    noise: Share = 0.3
    """Share of random steps in a noisy episode."""
    per_episode: Count = 4
    """Maximum images of each label per played episode. Fewer means more episodes, which support a
    lower error rate."""
    failures_per_success: Count = 4
    """Maximum failures per success. Where successes are rare, a capture keeps one failure for each
    episode played rather than one for each success."""
    patience: Count = 200
    """Stop after this many episodes in a row without an image to keep."""
    from_video: Path | None = None
    """Instead of acting: take images from this video or folder of videos, --frames at most. Each
    video is an episode."""
    labels: Path | None = None
    """With --from-video, a CSV table of times in seconds: video,start,end,label, with success or
    failure. Default: labels.csv beside the videos, or else the folders success/ and failure/ that
    they are in."""
    video_fps: Annotated[float, Gt(0), Le(1000)] = 5.0
    """Images per second of a video."""
    from_lerobot: Path | None = None
    """Instead of acting: take images from this LeRobotDataset v3.0 folder, --frames at most."""
    camera: str | None = None
    """Key of its images, such as observation.images.front; not needed if there is one only."""
    label_column: str | None = None
    """Its column that says what is a success; by default next.success, else next.reward. none: take
    images without labels, for train-vae."""
    label_above: float | None = None
    """A number above this in that column is a success; default: 0.5, for a column of 0 and 1."""
    label_frame: Literal["same", "next"] | None = None
    """Image that shows the outcome of a row: that of the same row, as LeRobot's recorder for reward
    classifiers writes it, or of the next row. Default: next for next.success, same for others."""


@dataclass(frozen=True)
class FinetuneConfig:
    """Train a success classifier and save it as a bundle.

    Ends with threshold, error rates, OOD detector, INT8 network and a verdict. Exits with 3 if the
    classifier is useless.

    Examples:
        vinoreward finetune --data data/hover --out runs/hover-classifier
        vinoreward finetune --resume --out runs/hover-classifier
        vinoreward finetune --data data/mine --success-label good --out runs/mine-classifier
        vinoreward finetune --data data/more --out runs/better \\
            --weights runs/hover-classifier/bundle/model.safetensors
        vinoreward finetune --data data/mine --network resnet18 --pretrained --out runs/resnet
    """

    FIRST: ClassVar[tuple[str, ...]] = (
        "data", "out", "network", "weights", "pretrained", "freeze", "epochs", "target_fpr",
        "image_crop", "image_size", "success_label", "int8", "resume",
    )  # fmt: skip

    data: Path = Path("data/hover")
    """A capture, or any folder with one sub-folder of images per class."""
    out: Path = Path("runs/hover-classifier")
    """Run folder; the bundle is written to OUT/bundle."""
    name: str = ""
    """Name of the bundle; default: from the data's folder, as hover-classifier from data/hover."""
    network: str = "squeezenet1_1"
    """squeezenet1_1, which gives way to fine_resnet where that learns more in the first epochs;
    fine_resnet, for small targets; any other classifier of torchvision (resnet18,
    mobilenet_v3_small, efficientnet_b0 ...), or timm:NAME with the extra timm (timm:resnet10t)."""
    weights: Path | None = None
    """Initial weights (.safetensors, or .pt loaded as data only) of the same network; the last
    layer may be another. Default: from scratch."""
    pretrained: bool = False
    """Initial weights that torchvision or timm publish for the network, downloaded or cached."""
    freeze: bool = False
    """Train the last layer only, of --weights or --pretrained: for a few hundred images."""
    epochs: Annotated[int, Ge(1)] = 12
    """Passes over the training frames."""
    learning_rate: Annotated[float, Gt(0), Lt(1)] = 1e-3
    """Highest learning rate, after warm-up; decays to 0 along a cosine."""
    target_fpr: Annotated[float, Gt(0), Lt(1)] | None = None
    """False-positive rate of the threshold, with 95 % confidence. Default: 0.01, or less where
    episodes are long, or the next higher that the data support."""
    image_crop: tuple[int, int, int, int] | None = None
    """TOP LEFT HEIGHT WIDTH: cut this out of each image first, as the bundle does later."""
    image_size: tuple[int, int] | None = None
    """Resize images to HEIGHT WIDTH; default: the size of a capture's images, of others the most
    common one, made smaller until the longer side has 160 pixels."""
    success_label: str = "success"
    """Sub-folder with the successes."""
    int8: Int8 = "auto"
    """Add an INT8 network. auto: if its decisions agree with FP32's and it is faster on this
    processor; on: if they agree, else the command fails; off: no."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of initial weights and order; not of the split."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""


@dataclass(frozen=True)
class ImportConfig:
    """Make a bundle from a classifier or an encoder that was trained elsewhere.

    Accepts an ONNX file, a state dict with its network, or the folder of a LeRobot reward
    classifier. What the file defines (size, layout, softmax or sigmoid at the end, Intel
    model_api's model_info) need not be given. A classifier's threshold is a guess until vinoreward
    calibrate chooses it. Give one image with the latent that the original encoder makes of it: this
    checks colour order, value range and size.

    Examples:
        vinoreward import --model resnet18.onnx --labels failure success \\
            --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225 --out bundles/mine
        vinoreward import --model weights.pt --network resnet18 --height 224 --width 224 \\
            --labels failure success --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225 \\
            --out bundles/mine
        vinoreward import --model lerobot/reward_classifier --out bundles/mine
        vinoreward import --model encoder.onnx --data frames --out bundles/mine \\
            --golden frame.png latent.npy
    """

    FIRST: ClassVar[tuple[str, ...]] = (
        "model", "out", "kind", "network", "height", "width", "color_order", "mean", "std",
        "labels", "success_label", "data", "golden",
    )  # fmt: skip

    model: Path
    """An .onnx, a state dict (.pt or .safetensors, read as data), or a LeRobot reward
    classifier's folder."""
    out: Path
    """The new bundle's folder."""
    kind: Literal["classifier", "encoder"] | None = None
    """Default: a classifier if there are labels, an encoder if there are --data or two outputs."""
    name: str | None = None
    """Name of the bundle; default: the model file's name."""
    network: str | None = None
    """Of a state dict: torchvision's name of a classifier, such as resnet18, or
    PACKAGE.MODULE:FUNCTION or FILE.py:FUNCTION, which builds the module."""
    height: Annotated[int, Ge(1)] | None = None
    """Of the network's input, if the file does not define it."""
    width: Annotated[int, Ge(1)] | None = None
    """Of the network's input, if the file does not define it."""
    layout: Literal["NCHW", "NHWC"] | None = None
    """Of the network's input, if the file does not define it."""
    color_order: Literal["RGB", "BGR"] | None = None
    """Colour order in the network's training; default: the file's, or RGB."""
    mean: tuple[float, float, float] | None = None
    """Per channel, in units of pixel / scale. Default: the file's, or of an encoder 0 0 0."""
    std: tuple[float, float, float] | None = None
    """Per channel, in units of pixel / scale. Default: the file's, or of an encoder 1 1 1."""
    scale: float | None = None
    """Divisor of pixels: 255 (the default) for a network trained on 0 to 1, 1 for 0 to 255."""
    crop: tuple[int, int, int, int] | None = None
    """TOP LEFT HEIGHT WIDTH: crop each image first, as in training."""
    resize: bool = True
    """Resize images to the network's size; otherwise another size is an error."""
    outputs: tuple[str, ...] = ()
    """Names or numbers of the graph's outputs. Of a classifier one number; of an encoder the
    vector, or means then log variances. Default: the file's."""
    labels: tuple[str, ...] = ()
    """Of a classifier: one per output, in order; for a network with one output two, that of a low
    output first. Default: the file's."""
    success_label: str = "success"
    """Which label means success."""
    output: Literal["logits", "probabilities", "logit", "probability"] | None = None
    """What a classifier returns: one column per label, or a single one for the second label;
    before or after the softmax or sigmoid. Default: from the file."""
    threshold: Annotated[float, Ge(0), Le(1)] | None = None
    """Lowest probability of success until it is calibrated; default: the file's, or 0.5."""
    data: Path | None = None
    """Of an encoder: a folder of typical images, for the bounds of the latent and golden images."""
    posterior: bool | None = None
    """Whether an encoder outputs means and log variances; default: from the file's outputs."""
    latent_size: Annotated[int, Ge(1)] | None = None
    """Length of the latent vector, if the outputs do not define it."""
    golden: tuple[Path, Path] | None = None
    """IMAGE LATENT: an image, and a .npy file of the means that the original encoder makes of
    it."""
    stretch: bool = False
    """Allow images of another aspect ratio, if the encoder was trained on stretched ones.
    Otherwise they are an error, because positions in the image would move."""
    overwrite: bool = False
    """Replace an existing bundle."""


@dataclass(frozen=True)
class CalibrateConfig:
    """Choose a bundle's threshold, OOD detector and INT8 network on labelled images.

    For classifiers from elsewhere, and for any other camera or place: the bundle gets what finetune
    gives its own (threshold with its bound, metrics, verdict, OOD detector, golden frames, model
    card). An encoder's bundle gets an INT8 network only.

    Exits with 3 if the classifier is useless on these images.

    Examples:
        vinoreward calibrate --bundle bundles/mine --data data/mine
        vinoreward calibrate --bundle bundles/mine --data data/mine --target-fpr 0.05
        vinoreward calibrate --bundle bundles/mine --data data/mine --int8 on
    """

    bundle: Path
    """The bundle's folder. An installed bundle is read-only: copy it first."""
    data: Path
    """A capture, or any folder with one sub-folder of images per class. Of what the classifier was
    trained on, only the held-out images choose the threshold."""
    target_fpr: Annotated[float, Gt(0), Lt(1)] | None = None
    """False-positive rate of the threshold, with 95 % confidence. Default: 0.01, or less where
    episodes are long, or the next higher that the data support."""
    success_label: str = "success"
    """Sub-folder of the data with the successes."""
    int8: Int8 = "auto"
    """Add an INT8 network, as in finetune."""


@dataclass(frozen=True)
class LabelConfig:
    """Label images in the browser, the most useful first: success, failure, skip, undo.

    Opens a page of this machine's own; no other machine can reach it. Each label is on the disk
    before the next image appears. Stop with Ctrl-C; the same command goes on where you were. Some
    images come twice, unmarked, to measure how often you agree with yourself.

    Examples:
        vinoreward label --run runs/mine-policy --bundle runs/mine-classifier/bundle
        vinoreward label --data data/mine --limit 200
        vinoreward label --video recordings --video-fps 2
    """

    run: Path | None = None
    """A run of vinoreward train: images of claimed successes."""
    data: Path | None = None
    """Instead: a capture, or any folder of images."""
    video: Path | None = None
    """Instead: a video, or a folder of videos; each video is an episode."""
    video_fps: float = 2.0
    """Images per second of a video."""
    bundle: str | None = None
    """Classifier that chooses which images come first, never shown: those it is unsure of, and
    claims that its guard finds out of distribution. A folder, the name of an installed one, or
    hf:OWNER/NAME. None: what the run recorded, else random order."""
    order: Literal["useful", "drawn"] = "useful"
    """useful: the most useful first, to mend a classifier. drawn, with --run: in the order of the
    run's random draw, so that few labels bound the precision of all its claims."""
    labeller: str | None = None
    """Your name, as written with each label; default: your login name."""
    limit: int | None = None
    """Maximum number of new images in this sitting; default: all."""
    duplicates: float = 0.05
    """Share of images that are shown a second time."""
    out: Path | None = None
    """File of labels, appended to; default: labels.jsonl in the run or data folder, or beside the
    video."""
    port: int = 0
    """Port on 127.0.0.1; 0: any free one."""
    open: bool = True
    """Open the browser. The address is printed in any case."""


@dataclass(frozen=True)
class ScoreConfig:
    """Score each image of a dataset with a classifier: a probability, a success and a reward.

    Writes DATA/scores/NAME/scores.csv, of the bundle's NAME. Where the data have labels, the report
    beside it has rates with intervals by episode and by frame, ROC and calibration. Run the same
    command again to continue after Ctrl-C, or when images were added.

    Examples:
        vinoreward score --data data/mine --bundle runs/mine-classifier/bundle
        vinoreward score --data recordings/pick --camera observation.images.front \\
            --bundle runs/pick-classifier/bundle
    """

    bundle: str
    """A bundle's folder, the name of an installed one, or hf:OWNER/NAME on the Hugging Face Hub."""
    data: Path
    """A capture, any folder of images, or a LeRobotDataset v3.0."""
    out: Path | None = None
    """Folder to write; default: DATA/scores/NAME."""
    success_label: str = "success"
    """Label or sub-folder of the successes; if there is none, images have no labels."""
    camera: str | None = None
    """Of a LeRobot dataset: key of its images; not needed if there is one only."""
    label_column: str | None = None
    """Of a LeRobot dataset, as in capture: next.success, else next.reward, if it has one."""
    label_above: float | None = None
    """A number above this in that column is a success; default: 0.5, for a column of 0 and 1."""
    label_frame: Literal["same", "next"] | None = None
    """Image that shows the outcome of a row, as in capture."""
    threshold: Annotated[float, Ge(0), Le(1)] | None = None
    """Probability from which success is claimed; default: the bundle's."""
    success_reward: float = 1.0
    """Reward of a claimed success."""
    step_reward: float = 0.0
    """Reward of any other image."""
    backend: str = "openvino"
    """What runs the network, in FP32."""
    device: str = "CPU"
    """Device of the backend."""
    on_ood: Literal["withhold", "ignore"] = "withhold"
    """An image that is out of distribution is no success (withhold), or is not checked (ignore)."""
    overwrite: bool = False
    """Replace scores that another bundle or other settings made."""


@dataclass(frozen=True)
class AuditConfig:
    """Try to cheat a classifier: what does it claim under other light, from a dead camera, ...?

    Writes report.html and audit.json: whether it is safe (rewards no failures; else the exit status
    is 3) and robust (misses no successes). Images should be new to it, from many episodes.

    Examples:
        vinoreward capture --frames 1500 --seed 7 --out data/audit
        vinoreward audit --bundle panda-hover-classifier --data data/audit \\
            --env PandaHoverRandom-v0
        vinoreward audit --bundle runs/mine-classifier/bundle --data data/mine --pairs photos
    """

    FIRST: ClassVar[tuple[str, ...]] = (
        "bundle", "data", "pairs", "env", "env_kwargs", "policy", "interventions", "truth",
        "learn_steps", "out", "card",
    )  # fmt: skip

    bundle: str
    """A bundle's folder, the name of an installed one, or hf:OWNER/NAME on the Hugging Face Hub."""
    data: Path
    """A capture, or an image folder with one folder per class. Of what the bundle was trained on,
    only the part kept for its test is used."""
    pairs: Path | None = None
    """A folder with success/01.png and, of the same scene without its cause, removed/01.png or
    moved/01.png, and so on."""
    env: str | None = None
    """An environment to play in: whether claims depend on their cause, and which failures are
    claimed."""
    env_kwargs: Arguments = field(default_factory=dict)
    """Arguments of the environment, as in capture."""
    policy: str | None = None
    """Who plays, as in capture; default: at random."""
    interventions: str | None = None
    """FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION of the environment (env.unwrapped) that returns a
    list of vinoreward.Intervention and vinoreward.SearchSpace; default: what the environment
    offers."""
    learn_steps: Annotated[int, Ge(0)] = 2000
    """With --env: train a policy on the reward for so many steps, and compare its claims with the
    truth; 0 for none."""
    truth: str | None = None
    """Key of info or function that tells the truth, as in capture."""
    image_source: str = "render"
    """The environment's image: render, obs or obs:KEY."""
    out: Path | None = None
    """New folder for the report; default: runs/NAME-audit."""
    card: bool = False
    """Also write the result into the bundle's model card, README.md."""
    success_label: str = "success"
    """Label or sub-folder of the successes."""
    backend: str = "openvino"
    """What runs the network."""
    precision: Literal["fp32", "auto", "int8"] = "auto"
    """As the classifier will run; where that is INT8, its decisions are compared with FP32's."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of images, corruptions, states and episodes."""


@dataclass(frozen=True)
class MendConfig:
    """Refit a classifier from labels, audit it again, and keep the old one if the new one is worse.

    Trains from the bundle's own weights, on the labelled images and a sample of its old data. The
    exit status is 3 where the old bundle is kept.

    Examples:
        vinoreward mend --bundle runs/mine-classifier/bundle --data data/mine \\
            --labels runs/mine-policy --out runs/mine-mended
        vinoreward mend --bundle runs/mine-classifier/bundle --data data/mine \\
            --labels runs/mine-audit/findings --env my_package:MyEnv-v0 --out runs/mine-mended
    """

    bundle: str
    """A bundle of vinoreward finetune: its folder, or the name of an installed one."""
    data: Path
    """The images it was trained on, so that it forgets nothing; only its training part is used."""
    labels: tuple[Path, ...]
    """Folders with a labels.jsonl of vinoreward label, and runs whose claims carry the truth."""
    out: Path = Path("runs/mended")
    """Run folder; the bundle is written to OUT/bundle if it is no worse."""
    target_fpr: Annotated[float, Gt(0), Lt(1)] | None = None
    """False-positive rate of the threshold, with 95 % confidence; default: keep the recall that the
    bundle has on the validation part of --data."""
    env: str | None = None
    """An environment for the audits, as in audit. States of its search spaces that the network gets
    wrong are trained on too."""
    env_kwargs: Arguments = field(default_factory=dict)
    """Arguments of the environment, as in capture."""
    policy: str | None = None
    """Who plays in the audits, as in capture; default: at random."""
    interventions: str | None = None
    """As in audit."""
    truth: str | None = None
    """Key of info or function that tells the truth, as in capture."""
    image_source: str = "render"
    """The environment's image: render, obs or obs:KEY."""
    success_label: str = "success"
    """Label or sub-folder of the successes in --data."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the training and of the audits, which draw otherwise than vinoreward audit."""
    resume: bool = False
    """Continue the training in --out from its last checkpoint; give the other options again."""


@dataclass(frozen=True)
class TrainVaeConfig:
    """Train a state encoder (a variational autoencoder) and save it as a bundle.

    Takes a capture or any folder of images. If the capture recorded positions, the latent is
    trained to show them, and the model card says how well a linear probe reads them from it.

    Examples:
        vinoreward train-vae --data data/hover --image-size 64 64 --out runs/encoder
        vinoreward train-vae --resume --out runs/encoder
        vinoreward train-vae --data data/hover --beta 300 --steps 2000 --out runs/encoder
    """

    data: Path = Path("data/hover")
    """A capture, or any folder of images; needs no labels."""
    out: Path = Path("runs/encoder")
    """Run folder; the bundle is written to OUT/bundle."""
    image_size: tuple[int, int] | None = None
    """Resize images to HEIGHT WIDTH; default: the images' own size."""
    latent: Annotated[int, Ge(1), Le(4096)] = 32
    """Length of the latent vector."""
    steps: Annotated[int, Ge(1)] = 20_000
    """Training steps, of 64 images each."""
    beta: Annotated[float, Ge(0), Lt(1e6)] = 1.0
    """Weight of the KL divergence; a higher one gives fewer active, broader dimensions."""
    int8: Int8 = "auto"
    """Add an INT8 network. auto: if its latents agree with FP32's and it is faster on this
    processor; on: if they agree, else the command fails; off: no."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the split, the initial weights, the order and the noise."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""


@dataclass(frozen=True)
class DoctorConfig:
    """Show what is installed, which backends and devices work, and how to add what is missing.

    Exits with 0 if the core works (wrapping your own environment with a bundle), else with 1.

    Examples:
        vinoreward doctor
        vinoreward doctor --bundle runs/hover-classifier/bundle
    """

    bundle: str | None = None
    """Bundle whose golden frames run on every backend; None: every installed one."""


@dataclass(frozen=True)
class DemoConfig:
    """Capture, fine-tune, quantize, check, train, play and report: under 5 minutes on two cores.

    1. capture: labelled images of the arm over, next to and away from the object.
    2. finetune: train a classifier on them. It starts from the shipped bundle's weights, so few
       images are enough; with --from-scratch from random ones.
    3. quantize: an INT8 network, kept only if it makes the same decisions.
    4. check: compare this classifier with the shipped one on new scenes.
    5. train: SAC learns to hover; its only reward is the classifier's.
    6. play: a film, and the true success rate according to the simulator.
    7. report: all results in one HTML file.

    After Ctrl-C, run the same command again: finished stages are skipped, and the interrupted one
    resumes.

    Examples:
        vinoreward demo
        vinoreward demo --out runs/second --seed 1
        vinoreward demo --out runs/moving --env PandaHoverRandom-v0
        vinoreward demo --out runs/scratch --from-scratch
    """

    out: Path = Path("runs/demo")
    """Folder for all files."""
    seed: Seed = 0
    """Seed of every stage; the images always differ from those of the shipped bundle."""
    from_scratch: bool = False
    """Start the classifier from random weights. It then needs 24000 images and 8 epochs (unless
    --frames and --epochs are given): about 15 minutes on two cores."""
    frames: Count | None = None
    """Images to capture; None is 5000, from scratch 24000."""
    epochs: Count | None = None
    """Epochs; None is 2, from scratch 8."""
    target_fpr: float = 0.02
    """False-positive rate of the threshold; 1 % needs more images."""
    scenes: Annotated[int, Ge(8)] = 1000
    """New scenes for the comparison with the shipped classifier."""
    env: str = "PandaHover-v0"
    """Training environment; PandaHoverRandom-v0 takes some minutes more."""
    timesteps: Count | None = None
    """Maximum training steps; None is the preset's. Training stops when the task is solved."""
    episodes: Count = 100
    """Episodes of the final evaluation."""
