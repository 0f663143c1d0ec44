package Leasehold::Process;

# Processes, pipes and signals, in a program that has its own.
#
# In:    a command, or the wish to end. Out: a detached process and two pipes to it.
# Never: leaves a child that the program's wait() could find, changes $? or $@, or runs code of the program in a child.

use strict;
use warnings;

use Errno qw(EINTR);
use Fcntl qw(F_DUPFD F_SETFD FD_CLOEXEC O_WRONLY O_RDWR);
use POSIX       ();
use Time::HiRes ();

use Leasehold::Error;

our $VERSION = '0.2.0';

# Longest session that a server takes, in bytes.
my $SESSION_LEN_MAX = 512;

# Where the system does not tell what is open. The limit itself may be a thousand million.
my $FEW_DESCRIPTORS = 1023;
# How often the guard of a process that ends looks whether it has ended, in seconds.
my $LOOK_PERIOD = 0.02;

# Who makes and uses claims: a process, or in a program with threads one of them.
sub worker {
    my $thread = $INC{'threads.pm'} ? threads->tid : 0;
    return $thread ? "$$.$thread" : $$;
}

# Runs $code without a trace in $@ and $!. An exception is thrown again where the program's own handler sees it. $? is never
# made local around code that may run a handler of the program: the code of an `exit` in there would be forgotten.
sub undisturbed {
    my ($code) = @_;
    my ( $ok, $error, $result );
    {
        local ( $@, $! );
        local $SIG{__DIE__};
        $ok    = eval { $result = $code->(); 1 };
        $error = $@;
    }
    return $result if $ok;
    die $error;
}

my @SESSION = (0);    # the process that it belongs to, and its part of the session

# This process as a worker, as the server is told: below the session that it was started in. Nothing if so many levels are
# nested that it would be too long.
sub session {
    @SESSION = ( $$, "$$-" . substr fresh_key(), 0, 8 ) if $SESSION[0] != $$;
    my $outer = $ENV{LEASEHOLD_SESSION};
    my $is_path = defined $outer && $outer =~ m{\A[^/[:cntrl:]]+(?:/[^/[:cntrl:]]+)*\z};
    my $session = $is_path ? "$outer/$SESSION[1]" : $SESSION[1];
    return length $session <= $SESSION_LEN_MAX ? $session : undef;
}

# A key that nobody else has. Not from rand: forked children, and programs that set its seed, would share their keys.
sub fresh_key {
    open my $random, '<:raw', '/dev/urandom'
        or Leasehold::Error::KeychainGone->throw( message => "/dev/urandom can't be read: $!" );
    my $read = sysread $random, my $bytes, 16;
    close $random;
    Leasehold::Error::KeychainGone->throw( message => '/dev/urandom gives nothing' ) if !$read || $read != 16;
    return unpack 'H*', $bytes;
}

# Starts a command with a pipe to its input and one from its output. It becomes no child of this process.
sub spawn {
    my ( $command, $env ) = @_;
    my ( $stdin, $to )      = _pipe();
    my ( $from,  $stdout )  = _pipe();
    my ( $news,  $failure ) = _pipe();
    my $forked = _detached(
        sub {
            _exec( $command, $env, $stdin, $stdout );
            syswrite $failure, $@ || "$!";
        }
    );
    close $_ for $stdin, $stdout, $failure;
    my $why = $forked ? _read_all($news) : "fork: $!";
    return ( $to, $from ) if $why eq q{};
    return Leasehold::Error::KeychainGone->throw(
        message => "'$command->[0]' can't be started ($why); set LEASEHOLD_BIN to its path" );
}

# Ends this process: SIGTERM, and if its handler does not end it within the grace, SIGKILL.
sub terminate {
    my ($grace) = @_;
    my $handler = $SIG{TERM};
    if ( defined $handler && $handler ne q{} && $handler ne 'DEFAULT' ) {
        my $process = $$;
        _detached( sub { _kill_after( $process, $grace ) } );
    }
    POSIX::sigprocmask( POSIX::SIG_UNBLOCK(), POSIX::SigSet->new( POSIX::SIGTERM() ) );
    return kill TERM => $$;
}

sub _kill_after {
    my ( $process, $grace ) = @_;
    # Somebody may wait for the end of the program's output; this process must not keep it open.
    my @open = map { m/(\d+)\z/ } glob '/proc/self/fd/*';
    POSIX::close($_) for @open ? @open : 0 .. $FEW_DESCRIPTORS;
    for ( 1 .. $grace / $LOOK_PERIOD ) {
        Time::HiRes::sleep($LOOK_PERIOD);
        return if !kill 0 => $process;
    }
    return kill KILL => $process;
}

# Runs $code in a process that is no child of this one. Returns false if there can't be one.
sub _detached {
    my ($code) = @_;
    my $mask   = Leasehold::Process::Mask->block;
    my $child  = CORE::fork();
    if ( defined $child && $child == 0 ) {
        # From here on no handler, destructor or END block of the program may run.
        my $grandchild = CORE::fork();
        POSIX::_exit( defined $grandchild ? 0 : 1 ) if !defined $grandchild || $grandchild > 0;
        eval { _forget_signals(); POSIX::setsid(); $code->(); 1 };
        POSIX::_exit(127);
    }
    my $is_done = defined $child;
    if ($is_done) {
        local ( $!, $? );
        # A program that ignores SIGCHLD leaves no status; a failed start shows on the pipes then.
        $is_done = waitpid( $child, 0 ) != $child || $? == 0;
    }
    $mask->restore;
    return $is_done;
}

sub _forget_signals {
    delete @SIG{qw(__DIE__ __WARN__)};
    for my $name ( grep { defined $SIG{$_} && $SIG{$_} ne q{} } keys %SIG ) {
        $SIG{$name} = 'DEFAULT';
    }
    return POSIX::sigprocmask( POSIX::SIG_SETMASK(), POSIX::SigSet->new );
}

# Returns only if it fails, with the reason in $! or, for a program in taint mode, in $@.
sub _exec {
    my ( $command, $env, $stdin, $stdout ) = @_;
    for my $name ( keys %{$env} ) {
        if   ( defined $env->{$name} ) { $ENV{$name} = $env->{$name} }
        else                           { delete $ENV{$name} }
    }
    POSIX::dup2( fileno $stdin,  0 );
    POSIX::dup2( fileno $stdout, 1 );
    # A program may have closed its standard error; the keychain needs one.
    my $null = POSIX::open( '/dev/null', O_WRONLY );
    POSIX::close($null) if defined $null && $null > 2;
    no warnings 'exec';
    return eval { exec { $command->[0] } @{$command} };
}

# Both ends above the standard handles, closed in every program that is started, and without layers.
sub _pipe {
    pipe my $from, my $to
        or Leasehold::Error::KeychainGone->throw( message => "no pipe can be made: $!" );
    my @ends = ( _above_standard( $from, '<' ), _above_standard( $to, '>' ) );
    for my $end (@ends) {
        binmode $end;
        fcntl $end, F_SETFD, FD_CLOEXEC;
    }
    return @ends;
}

# A program may have closed its standard handles; a pipe in their place would be taken for one.
sub _above_standard {
    my ( $handle, $mode ) = @_;
    return $handle if fileno $handle > 2;
    my $number = fcntl $handle, F_DUPFD, 3;
    open my $moved, "$mode&=", $number
        or Leasehold::Error::KeychainGone->throw( message => "no pipe can be made: $!" );
    return $moved;
}

sub _read_all {
    my ($handle) = @_;
    my $text = q{};
    my $got;
    do { $got = sysread $handle, $text, 4096, length $text } while $got || !defined $got && $! == EINTR;
    return $text;
}

package Leasehold::Process::Mask;

# Keeps all signals back for a few lines, also when these are left by an exception.

sub block {
    my ($class) = @_;
    my $before = POSIX::SigSet->new;
    POSIX::sigprocmask( POSIX::SIG_BLOCK(), POSIX::SigSet->new, $before );
    my $self = bless { before => $before }, $class;
    my $all  = POSIX::SigSet->new;
    $all->fillset;
    POSIX::sigprocmask( POSIX::SIG_SETMASK(), $all );
    # The handler of a signal that came before runs at perl's next branch: this one, and none of the caller's.
    return $self if $self->{before};
    return;
}

sub restore {
    my ($self) = @_;
    my $before = delete $self->{before} or return;
    POSIX::sigprocmask( POSIX::SIG_SETMASK(), $before );
    # The handlers of what came meanwhile run at this branch. In the destructor, what they throw would be lost.
    return 1 if $before;
    return;
}

sub DESTROY {
    my ($self) = @_;
    POSIX::sigprocmask( POSIX::SIG_SETMASK(), $self->{before} ) if $self->{before};
    return;
}

1;

__END__

=encoding utf8

=head1 NAME

Leasehold::Process - processes, pipes and signals for the other modules of Leasehold

=head1 DESCRIPTION

For this library only. A keychain is started by a child that ends at once, so that it never is a child of your program:
C<wait> and C<waitpid(-1, ...)> don't find it, and its end sends no C<SIGCHLD>. The short-lived child may send one when
the keychain is started; it has been waited for by then.

=head1 FUNCTIONS

=head2 worker

The number of this process, with that of the thread in a program that has any.

=head2 undisturbed

Runs code and leaves C<$@> and C<$!> as they were.

=head2 session

This process as a worker that the server can tell from others.

=head2 fresh_key

A random key, for a claim that another keychain can find again.

=head2 spawn

Starts a command with pipes to and from it.

=head2 terminate

Ends this process: C<SIGTERM>, and C<SIGKILL> after a grace if the program has a handler for the first.

=cut
