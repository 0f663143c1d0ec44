# Signals, timers and the program's own variables: nothing of the program is disturbed, and nothing disturbs the claims.

use strict;
use warnings;

use lib 't/lib';
use POSIX qw(WNOHANG);
use Test::More;
use Time::HiRes qw(alarm sleep);

use Leasehold;
use TestServer qw(eventually program PATIENCE);

my $server  = TestServer->start;
my $url     = $server->url;
my $manager = Leasehold::LockManager->new( url => $url, on_lost => sub { } );

subtest 'a handler of SIGCHLD hears of the program\'s children and no other' => sub {
    my ( %reaped, $keychain );
    local $SIG{CHLD} = sub {
        local ( $!, $? );
        while ( ( my $pid = waitpid -1, WNOHANG ) > 0 ) { $reaped{$pid} = $? >> 8 }
    };
    my $pid = fork;
    POSIX::_exit(5) if !$pid;
    {
        my $own   = Leasehold::LockManager->new( url => $url );
        my $claim = $own->claim('chld');
        $keychain = $own->keychain_pid;
        ok $claim->release;
    }
    eventually( sub { exists $reaped{$pid} } );
    is_deeply \%reaped, { $pid => 5 };
    eventually( sub { !kill 0 => $keychain } );
    is_deeply \%reaped, { $pid => 5 }, 'also when the keychain has ended';
};

subtest 'a program that ignores SIGCHLD' => sub {
    local $SIG{CHLD} = 'IGNORE';
    my $own   = Leasehold::LockManager->new( url => $url );
    my $claim = $own->claim('ignored');
    ok $claim->validate;
    ok $claim->release;
    ok $own->close;
    is $SIG{CHLD}, 'IGNORE';
};

subtest 'no child is left for wait, before and after' => sub {
    my $own = Leasehold::LockManager->new( url => $url );
    # The server is this test's own child.
    is waitpid( -1, WNOHANG ), 0, 'there is only the server';
    $own->close;
    is waitpid( -1, WNOHANG ), 0;
};

subtest '$@, $! and $? stay as they were' => sub {
    my $check = sub {
        my ( $what, $code ) = @_;
        system $^X, '-e', 'exit 42';
        $@ = 'mine';
        $! = 7;
        $code->();
        is $@,      'mine', "\$\@ after $what";
        is $! + 0,  7,      "\$! after $what";
        is $? >> 8, 42,     "\$? after $what";
    };
    my ( $own, $claim );
    $check->( new      => sub { $own   = Leasehold::LockManager->new( url => $url ) } );
    $check->( claim    => sub { $claim = $own->claim('variables') } );
    $check->( validate => sub { $claim->validate } );
    $check->( refresh  => sub { $claim->refresh } );
    $check->( is_lost  => sub { $claim->is_lost } );
    $check->( release  => sub { $claim->release } );
    $check->( list     => sub { $own->list } );
    $check->( data     => sub { $claim = $own->claim( resource => 'variables', data => '{"a": 1}' ) } );
    $check->( DESTROY  => sub { undef $claim } );
    $check->( close    => sub { $own->close } );
    my $other = Leasehold::LockManager->new( url => $url );
    $check->( 'the end of a manager' => sub { undef $other } );
};

subtest '$? after an exception' => sub {
    system $^X, '-e', 'exit 42';
    eval { my $claim = $manager->claim(q{}) };
    ok ref $@;
    is $? >> 8, 42;
};

subtest 'a handler of __DIE__ sees what leaves this library, once, and nothing else' => sub {
    my @seen;
    local $SIG{__DIE__} = sub { push @seen, $_[0] };
    my $claim = $manager->claim( resource => 'hook', data => '[1]' );
    eval { $manager->claim('hook') };
    $claim->release;
    { my $scope = $manager->claim('hook') }
    is scalar @seen, 1;
    isa_ok $seen[0], 'Leasehold::Error::AlreadyClaimed';
};

subtest 'an alarm that throws ends claim, and the claim leaves the queue' => sub {
    my $id = $server->take('alarm');
    for my $round ( 1 .. 3 ) {
        my $claim = eval {
            local $SIG{ALRM} = sub { die "time is over\n" };
            alarm 0.3;
            $manager->claim('alarm');
        };
        alarm 0;
        is $@, "time is over\n";
        is $claim, undef;
    }
    ok eventually( sub { $server->statuses('alarm') eq 'active withdrawn withdrawn withdrawn' } );
    $server->give($id);
    my $claim = $manager->claim('alarm');
    ok $claim->validate, 'and can be claimed again';
};

subtest 'an exception at any moment leaves no claim behind' => sub {
    for my $round ( 1 .. 60 ) {
        my $claim = eval {
            local $SIG{ALRM} = sub { die "now\n" };
            alarm 0.0002 * $round;
            my $made = $manager->claim('moment');
            alarm 0;
            $made;
        };
        alarm 0;
        $claim->release if $claim;
    }
    my $claim = $manager->claim( resource => 'moment', timeout => PATIENCE );
    ok $claim->validate;
    is scalar( grep { $_ eq 'active' } split q{ }, $server->statuses('moment') ), 1;
    is_deeply [ grep { $_->{resource} ne 'moment' } @{ $manager->list } ], [];
};

subtest 'an alarm that does not throw lets claim go on' => sub {
    my $id    = $server->take('ticks');
    my $ticks = 0;
    local $SIG{ALRM} = sub {
        $ticks++;
        if   ( $ticks < 5 ) { alarm 0.1 }
        else                { $server->give($id) }
    };
    alarm 0.1;
    my $claim = $manager->claim( resource => 'ticks', timeout => PATIENCE );
    is $ticks, 5;
    ok $claim->validate;
};

subtest 'a handler may use the same manager while claim waits' => sub {
    my $id = $server->take('nested');
    my $inner;
    local $SIG{ALRM} = sub {
        $inner = $manager->claim('inner');
        $inner->validate;
        $inner->release;
        isa_ok eval { $manager->claim('nested'); 1 } ? undef : $@, 'Leasehold::Error::AlreadyClaimed', 'the same resource';
        $server->give($id);
    };
    alarm 0.3;
    my $claim = $manager->claim( resource => 'nested', timeout => PATIENCE );
    ok $claim->validate;
    is $server->statuses('inner'), 'released';
};

subtest 'a handler of SIGURG that was there before is still called' => sub {
    my $program = program( <<'PROGRAM', $url );
my $calls = 0;
$SIG{URG} = sub { $calls++ };
my $told = 0;
my $manager = Leasehold::LockManager->new( url => $ARGV[0], ttl => 3, on_lost => sub { $told++ } );
my $claim = $manager->claim('urg');
my $before = $calls;
kill URG => $$;
print $calls > $before ? "called\n" : "silent\n";
print $claim->id, "\n";
sleep 1 until $told;
print "told\n";
undef $claim; undef $manager;
$calls = 0;
kill URG => $$;
print "restored $calls\n";
PROGRAM
    is $program->line, 'called';
    $server->revoke( $program->line );
    is $program->line, 'told';
    is $program->line, 'restored 1';
    is $program->end, 'exit 0';
};

subtest 'Ctrl-C reaches the program and not its keychain' => sub {
    my $program = program( <<'PROGRAM', $url );
my $claim = Leasehold::LockManager->new( url => $ARGV[0] )->claim('ctrl-c');
$SIG{INT} = sub { print $claim->validate > 0 ? "still held\n" : "lost\n"; exit 1 };
print "held\n";
sleep 1000;
PROGRAM
    is $program->line, 'held';
    kill INT => -$program->pid;
    is $program->line, 'still held';
    is $program->end, 'exit 1';
    is $server->statuses('ctrl-c'), 'released';
};

subtest 'no signal of ours wakes a program that sleeps' => sub {
    for ( 1 .. 20 ) {
        my $claim = $manager->claim('sleep');
        $claim->release;
        my $woken = 0;
        local $SIG{URG} = sub { $woken++ };
        select undef, undef, undef, 0.02;
        is $woken, 0;
    }
};

# Signals come at the worst moment: when the request is about to be written.
sub signalled_before_writing {
    my ( $times, $code ) = @_;
    no warnings qw(redefine once);
    my $new = \&Leasehold::Keychain::Request::new;
    local *Leasehold::Keychain::Request::new = sub {
        kill USR1 => $$ if $times-- > 0;
        return $new->(@_);
    };
    local $SIG{USR1} = sub { die "now\n" };
    return $code->();
}

subtest 'an exception right before a release leaves the claim to the program, and the release can be repeated' => sub {
    my $claim = $manager->claim('before');
    signalled_before_writing( 1, sub { eval { $claim->release } } );
    is $@, "now\n";
    ok $claim->validate, 'it is held';
    ok $claim->release;
    is $server->statuses('before'), 'released';
};

subtest 'an exception right before a destructor releases does not keep it from doing so' => sub {
    my $claim = $manager->claim('destructor');
    my @warnings;
    local $SIG{__WARN__} = sub { push @warnings, @_ };
    signalled_before_writing( 2, sub { undef $claim } );
    ok eventually( sub { $server->statuses('destructor') eq 'released' } );
    like "@warnings", qr/now/, 'perl tells of the exception';
};

done_testing;
