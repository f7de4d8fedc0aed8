"""Eq. 8 against a slow loop, buffers included."""

import torch
from torch import nn

from dsl.ssod.teacher import make_teacher, update_teacher


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def test_a_new_teacher_is_an_exact_frozen_copy() -> None:
    student = net().train()
    teacher = make_teacher(student)
    for name, tensor in student.state_dict().items():
        assert torch.equal(teacher.state_dict()[name], tensor)
    assert not any(p.requires_grad for p in teacher.parameters())
    assert not any(m.training for m in teacher.modules())
    assert all(p.requires_grad for p in student.parameters())


def test_parameters_and_buffers_follow_the_formula() -> None:
    torch.manual_seed(0)
    student, keep_rate = net().train(), 0.9
    teacher = make_teacher(student)
    expected = {k: v.double().clone() for k, v in student.state_dict().items()}
    for step in range(1, 16):
        with torch.no_grad():
            for p in student.parameters():
                p.add_(torch.randn_like(p))
        student(torch.randn(2, 3, 8, 8))  # moves the running statistics
        update_teacher(teacher, student, keep_rate=keep_rate, step=step)
        keep = min(keep_rate, 1 - 1 / (step + 1))
        for name, tensor in student.state_dict().items():
            if tensor.is_floating_point():
                expected[name] = keep * expected[name] + (1 - keep) * tensor.double()
            else:
                expected[name] = tensor.double()
    for name, tensor in teacher.state_dict().items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-6)
    assert teacher.state_dict()["1.num_batches_tracked"] == 15


def test_keep_rate_zero_is_the_student_itself() -> None:
    student = net()
    teacher = make_teacher(student)
    with torch.no_grad():
        student[0].weight.add_(1)
    update_teacher(teacher, student, keep_rate=0.0, step=100)
    torch.testing.assert_close(teacher[0].weight, student[0].weight)
