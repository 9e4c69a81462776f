"""All ranks of one export agree whether to reuse their plans.

Planning and the first use of a plan run object collectives over the pipeline-parallel
group; using a kept plan runs none of them.  If one rank reused its plan while a peer planned
anew, they would wait for each other forever.  So before an export touches a plan, its ranks
take the minimum of a few integers.

The reduction runs over the groups that the export itself communicates over, one after the
other: pipeline, tensor, expert, expert-tensor parallel.  No other communicator is used, so none
has to be created (on NCCL each costs device memory).  In a grid of ranks, minima along each
axis in turn are the minimum over the grid; and as the pipeline axis comes first and is common
to all later groups, pipeline peers always end with the same answer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ballot:
    """One rank's view of an export, or what all ranks together make of it.

    Attributes:
        hit: the kept plan is still right.
        no_adapters: the model has no adapter modules.
        mode: number that names the kind of export; equal on ranks that do the same.
        agreed_mode: all ranks do the same kind of export.
    """

    hit: bool
    no_adapters: bool
    mode: int
    agreed_mode: bool = True


def agree(ballot: Ballot, groups: Sequence[Any]) -> Ballot:
    """The ballot that all ranks of an export share.

    Args:
        ballot: of this rank.
        groups: from :func:`~verl_compat.shims.plan_fingerprint.process_groups`.

    Returns:
        ``hit`` and ``no_adapters`` only where every rank said so; ``agreed_mode`` false where
        ranks do different kinds of export.  Without a group of two or more ranks: the ballot
        as it is, and nothing is sent.
    """
    voters = voting_groups(groups)
    if not voters:
        return ballot
    import torch
    import torch.distributed as dist

    votes: Any = None
    for group in voters:
        device = reduce_device(group)
        if votes is None:
            numbers = [int(ballot.hit), int(ballot.no_adapters), ballot.mode, -ballot.mode]
            votes = torch.tensor(numbers, dtype=torch.int64, device=device)
        votes = votes.to(device)
        dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=group)
    hit, no_adapters, low, high = votes.tolist()
    same = low == -high
    return Ballot(hit=bool(hit) and same, no_adapters=bool(no_adapters), mode=ballot.mode, agreed_mode=same)


def voting_groups(groups: Sequence[Any]) -> list[Any]:
    """The groups to reduce over: two or more ranks, and not inside one already taken."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return []
    taken: list[Any] = []
    members: list[set[int]] = []
    for group in groups:
        if group is None or group == getattr(dist.GroupMember, "NON_GROUP_MEMBER", None):
            continue
        try:
            ranks = set(dist.get_process_group_ranks(group))
        except (KeyError, ValueError, TypeError):  # a destroyed or foreign group
            continue
        if len(ranks) > 1 and not any(ranks <= known for known in members):
            taken.append(group)
            members.append(ranks)
    return taken


def blind(groups: Sequence[Any]) -> bool:
    """True where there are other processes and no group to agree over: a kept plan could then be a hang."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return False
    return bool(dist.get_world_size() > 1) and all(group is None for group in groups)


def reduce_device(group: Any) -> Any:
    """The device on which object collectives of ``group`` run, as torch itself chooses it."""
    import torch.distributed.distributed_c10d as c10d

    for name in ("_get_object_coll_device", "_get_pg_default_device"):
        choose = getattr(c10d, name, None)
        if choose is not None:
            return choose(group)
    import torch

    return torch.device("cpu" if "gloo" in c10d.get_backend(group) else torch.cuda.current_device())
